"""What the numbers mean: normalization, accuracy, floors, crossover. Pure functions of numpy arrays."""

from olmes_monitor.measure.accuracy import predict
from olmes_monitor.measure.crossover import Crossover, find_crossover
from olmes_monitor.measure.normalize import normalize
from olmes_monitor.measure.summary import summarize

__all__ = ["Crossover", "find_crossover", "normalize", "predict", "summarize"]
