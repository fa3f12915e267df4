"""The run of a configuration, step by step, with arrays of numpy (tessera_train.h)."""
import json
import os
import tempfile
import time

import numpy as np

from . import engine


class Trainer:
    """Trains what a configuration names: a file's path, or a dict as the file would hold. Settings are keywords with
    dots: Trainer("run.json", **{"optimizer.params.lr": 1e-3}). data.train is not read.

        with tessera.Trainer({"model": "my-net", "train_batch_size": 32}) as t:
            for batch in batches:
                print(t.step(batch)["loss"])
            t.save("out")

    On several ranks (mpirun) each makes the same calls. One trainer is open at a time."""

    def __init__(self, config, **settings):
        said = [f"{key}={v if isinstance(v, str) else json.dumps(v)}".encode() for key, v in settings.items()]
        settings = (engine.ctypes.c_char_p * len(said))(*said)
        self._t, self._config = None, None
        with tempfile.TemporaryDirectory() as directory:
            path = config
            if isinstance(config, dict):
                path = os.path.join(directory, "config.json")
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(config, file)
            self._config = engine.config_open(os.fspath(path), settings, len(said), engine.ranks())
        try:
            self._t = engine.trainer_open(self._config)
        except BaseException:
            self.close()
            raise
        self.rank, self.ranks, self.batch = engine.rank(), engine.ranks(), engine.trainer_share(self._t)[0]
        self._first, self._graph = engine.trainer_share(self._t)[1], engine.trainer_graph(self._t)
        self._inputs = {}
        for k in range(engine.trainer_inputs(self._t)):
            made = engine.trainer_input_of(self._t, k)
            dtype = np.float32 if made.real else np.int32
            self._inputs[made.name.decode()] = tuple(made.shape[:made.rank]), dtype, made.same

    @property
    def inputs(self):
        """What a step takes on all ranks: {name: (shape, dtype)}. Those without samples are the same for all."""
        return {name: (shape[1:] if same else (self.batch, *shape[1:]), dtype)
                for name, (shape, dtype, same) in self._inputs.items()}

    def _values(self, batch):
        """Returns this rank's part of a batch as the library takes it, and what keeps it alive."""
        if set(batch) != set(self._inputs):
            raise ValueError(f"the batch has {sorted(batch)}, expected {sorted(self._inputs)}")
        kept = []
        for name, (shape, dtype, same) in self._inputs.items():
            array, expected = np.asarray(batch[name]), self.inputs[name][0]
            if array.shape != expected:
                raise ValueError(f"{name}: met {list(array.shape)}, expected {list(expected)}")
            array = np.broadcast_to(array, shape) if same else array[self._first:self._first + shape[0]]
            made = np.ascontiguousarray(array, dtype)
            if dtype is np.int32 and (array.dtype.kind not in "iub" or not np.array_equal(made, array)):
                raise ValueError(f"{name}: is {array.dtype}, expected whole numbers that fit 32 bits")
            kept.append(made)
        return (engine.ctypes.c_void_p * len(kept))(*[array.ctypes.data for array in kept]), kept

    def step(self, batch, lr=None):
        """Trains on a batch, the same on all ranks, and returns the metrics. lr replaces the configuration's."""
        values, kept = self._values(batch)
        begin, lr = time.perf_counter(), lr or engine.trainer_lr(self._t)
        r = engine.trainer_step(self._t, values, lr)
        return {"step": self.steps, "loss": r.loss, "lr": lr, "grad_norm": r.grad_norm, "skipped": r.skipped,
                "seconds": time.perf_counter() - begin}

    def train(self, batches, callbacks=()):
        """Makes a step of each batch, and calls every callback(trainer, metrics) behind it; one that returns False ends
        it. Returns the last metrics."""
        metrics = None
        for batch in batches:
            metrics = self.step(batch)
            if any([callback(self, metrics) is False for callback in callbacks]):
                break
        return metrics

    def eval(self, batch):
        """Returns the mean loss of a batch, without training."""
        values, kept = self._values(batch)
        return engine.trainer_eval(self._t, values)

    @property
    def steps(self):
        """Steps done."""
        return engine.trainer_at(self._t).contents.step

    def weights(self):
        """Returns {name: array} of all parameters, on every rank, in the two dimensions that the library keeps; those
        of an exported network as it has them."""
        made = {}
        for k in range(engine.graph_params(self._graph)):
            p = engine.graph_param(self._graph, k)
            rank, shape = engine.tensor_shape(p)
            whole = np.zeros(shape[:rank])
            flat = whole.reshape(shape[0], -1)
            for piece in range(engine.param_pieces(p)):
                at = engine.param_piece(p, piece)
                if not at.writes:
                    continue
                data = engine.param_map(p, piece, engine.MASTER, engine.R)
                part = np.ctypeslib.as_array(data, (at.rows, at.cols))
                flat[at.row:at.row + at.rows, at.col:at.col + at.cols] = part
                engine.param_unmap(p, piece, engine.MASTER)
            for begin in range(0, whole.size if self.ranks > 1 else 0, 1 << 24):
                part = whole.reshape(-1)[begin:begin + (1 << 24)]
                engine.ranks_sum(part, part.size)
            made[engine.tensor_name(p)] = (whole.T if engine.trainer_turned(p) else whole).astype(np.float32)
        return made

    def save(self, directory):
        """Writes the model as a run leaves it; tessera.load reads it."""
        engine.trainer_save(self._t, os.fspath(directory))

    def checkpoint(self, directory, keep=2):
        """Writes parameters, optimizer states and position to directory/step-N, and keeps the newest ones."""
        engine.graph_checkpoint(self._graph, os.fspath(directory), keep, engine.trainer_at(self._t))

    def resume(self, directory):
        """Goes on from the newest checkpoint in a directory, with the same bits; False: there is none."""
        return engine.graph_resume(self._graph, os.fspath(directory), engine.trainer_at(self._t))

    def close(self):
        engine.trainer_close(self._t)
        engine.config_close(self._config)
        self._t = self._config = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
