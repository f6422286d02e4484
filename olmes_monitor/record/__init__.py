"""What is kept: evaluations on disk, and a run read back from there. pyarrow and pandas load on use."""

from olmes_monitor.record.evaluation import Evaluation, Point
from olmes_monitor.record.run import Run
from olmes_monitor.record.store import Recorder, load_run

__all__ = ["Evaluation", "Point", "Recorder", "Run", "load_run"]
