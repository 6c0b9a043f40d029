"""What was tried on which chip, and what came of it: the records that `tuning` keeps and `ops` looks winners up in."""

from systolic.trials.database import StoreDamagedError, StoreError, StoreWarning
from systolic.trials.exported import EXPORT_SCHEMA, TrialsFileError, read_exported, read_trials_file
from systolic.trials.store import StoreHealth, TrialStore, store_file
from systolic.trials.trial import Subject, Trial, best_first

__all__ = [
    "EXPORT_SCHEMA",
    "StoreDamagedError",
    "StoreError",
    "StoreHealth",
    "StoreWarning",
    "Subject",
    "Trial",
    "TrialStore",
    "TrialsFileError",
    "best_first",
    "read_exported",
    "read_trials_file",
    "store_file",
]
