"""Searches the fastest configuration of a product, and makes the profiles of tiles that `cost` ships."""

from systolic.tuning.cluster import Certificates, ClusterError, cluster
from systolic.tuning.ranking import Ranking
from systolic.tuning.result import End, TuningResult, xla_repeated_us
from systolic.tuning.search import COMPILE_LIMIT_S, MOST_TRIALS, StalledError, Watcher, tune

__all__ = [
    "COMPILE_LIMIT_S",
    "MOST_TRIALS",
    "Certificates",
    "ClusterError",
    "End",
    "Ranking",
    "StalledError",
    "TuningResult",
    "Watcher",
    "cluster",
    "tune",
    "xla_repeated_us",
]
