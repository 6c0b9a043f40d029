"""Searches tiles with `measure` and keeps every trial."""

from systolic.tuning.cluster import ClusterError, cluster
from systolic.tuning.ranking import Ranking
from systolic.tuning.search import MOST_TRIALS, End, Submit, TuningResult, Watcher, repeated_us, subject_of, tune
from systolic.tuning.store import StoreError, StoreWarning, TrialStore, store_file
from systolic.tuning.trial import Subject, Trial

__all__ = [
    "MOST_TRIALS",
    "ClusterError",
    "End",
    "Ranking",
    "StoreError",
    "StoreWarning",
    "Subject",
    "Submit",
    "Trial",
    "TrialStore",
    "TuningResult",
    "Watcher",
    "cluster",
    "repeated_us",
    "store_file",
    "subject_of",
    "tune",
]
