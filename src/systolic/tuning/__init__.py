"""Searches tiles with `measure`, keeps every trial in `trials`, and makes the profiles that `tiling` ships."""

from systolic.tuning.cluster import ClusterError, cluster
from systolic.tuning.ranking import Ranking
from systolic.tuning.search import MOST_TRIALS, End, StalledError, Submit, TuningResult, Watcher, repeated_us, tune

__all__ = [
    "MOST_TRIALS",
    "ClusterError",
    "End",
    "Ranking",
    "StalledError",
    "Submit",
    "TuningResult",
    "Watcher",
    "cluster",
    "repeated_us",
    "tune",
]
