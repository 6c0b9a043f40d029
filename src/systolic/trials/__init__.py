"""What was tried on which chip, and what came of it: the records that `tuning` keeps and `ops` looks winners up in."""

from systolic.trials.state import StoreState, store_state
from systolic.trials.store import StoreError, StoreWarning, TrialStore, store_file
from systolic.trials.trial import Subject, Trial, best_first

__all__ = [
    "StoreError",
    "StoreState",
    "StoreWarning",
    "Subject",
    "Trial",
    "TrialStore",
    "best_first",
    "store_file",
    "store_state",
]
