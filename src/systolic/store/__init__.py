"""Records of trials by chip and their results: `tuning` writes them, and `ops` looks winners up in them."""

from systolic.store.database import StoreDamagedError, StoreError, StoreWarning
from systolic.store.exported import EXPORT_SCHEMA, TrialsFileError, read_exported, read_trials_file
from systolic.store.function import FUNCTIONS, FunctionConfig, FunctionConfigError, FunctionSpec, Keyword, arguments_of
from systolic.store.reading import read_subject, read_trial
from systolic.store.trial import Subject, Trial, best_first, fastest
from systolic.store.trial_store import StoreHealth, TrialStore, store_file
