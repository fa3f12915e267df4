# Prints the scalars that TensorBoard finds in a directory, a line each: tag, step, value. By test_monitor, where the
# package tensorboard is installed.
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in events.Tags()["scalars"]:
    for e in events.Scalars(tag):
        print(tag, e.step, repr(e.value))
