# What StarPU waits for, of a process that stands still: what each worker runs and fetches for, the state of that task's
# buffers on each memory node and what requests there are for them, and how much each node has of its memory.
#
#     gdb -p PID -batch -x tests/gpu/starpu.gdb -ex "thread apply all bt 12"
#
# It wants the debug information of libstarpu, which tools/bundle brings along.
set pagination off
set print pretty off
python
NODES = 4


def value(expression):
    return gdb.parse_and_eval(expression)


def name_of(task):
    if not int(task):
        return "nothing"
    return f"{task['name'].string() if int(task['name']) else '?'} at priority {int(task['priority'])}"


def tell_buffers(task):
    job = task["starpu_private"].cast(gdb.lookup_type("struct _starpu_job").pointer())
    ordered = job["dyn_ordered_buffers"] if int(job["dyn_ordered_buffers"]) else job["ordered_buffers"]
    for k in range(int(task["nbuffers"])):
        handle = ordered[k]["handle"]
        print(f"    buffer {k} {hex(int(handle))} mode {ordered[k]['mode']}, "
              f"{int(handle['busy_count'])} tasks have it, {int(handle['refcnt'])} references")
        for node in range(NODES):
            copy = handle["per_node"][node]
            requests = [hex(int(copy["request"][i])) for i in range(3) if int(copy["request"][i])]
            print(f"        node {node}: state {int(copy['state'])}, allocated {int(copy['allocated'])}, "
                  f"references {int(copy['refcnt'])}, requests {requests}")


def tell_worker(index):
    worker = value("_starpu_config")["workers"][index]
    count, fetching = int(worker["ntasks"]), worker["task_transferring"]
    if not count and not int(fetching):
        print(f"worker {index} {worker['name'].string()}: rests, {worker['status']}")
        return
    print(f"worker {index} {worker['name'].string()}: {count} tasks, status {worker['status']}; fetches for {name_of(fetching)}, "
          f"{int(worker['nb_buffers_transferred'])} of {int(worker['nb_buffers_totransfer'])} buffers are there")
    for k in range(count):
        piped = int(worker["pipeline_length"])
        task = worker["current_tasks"][(int(worker["first_task"]) + k) % 4] if piped else worker["current_task"]
        print(f"    has {name_of(task)} {task}")
    if int(fetching):
        tell_buffers(fetching)


def tell(what, *arguments):
    try:
        what(*arguments)
    except Exception as error:
        print(f"{what.__name__} {arguments}: {error}")


def tell_node(node):
    words = [f"{what} {value(f'{name}[{node}]{rest}')}" for what, name, rest in (
        ("used", "used_size", ""), ("of", "global_size", ""), ("pending requests", "data_requests_npending", ""),
        ("requests", "data_requests", ".tree.root"), ("prefetches", "prefetch_requests", ".tree.root"),
        ("idle requests", "idle_requests", ".tree.root"), ("chunks", "mc_nb", ""), ("cached", "mc_cache_size", ""),
        ("reclaiming", "reclaiming", ""), ("out of memory for prefetches", "prefetch_out_of_memory", ""))]
    print(f"node {node}: {', '.join(words)}")


def tell_all():
    for index in range(int(value("_starpu_config.topology.nworkers"))):
        tell(tell_worker, index)
    for node in range(NODES):
        tell(tell_node, node)


tell(tell_all)
end
