"""Searches tiles with `measure`, keeps every trial in `trials`, and makes the profiles that `tiling` ships."""

from systolic.tuning.cluster import Certificates, ClusterError, cluster
from systolic.tuning.ranking import Ranking
from systolic.tuning.result import End, TuningResult, repeated_us
from systolic.tuning.search import COMPILE_LIMIT_S, MOST_TRIALS, StalledError, Submit, Watcher, tune

__all__ = [
    "COMPILE_LIMIT_S",
    "MOST_TRIALS",
    "Certificates",
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
