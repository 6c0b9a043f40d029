"""Search the fastest tiles of a product or static arguments of a function, and make the profiles that `cost` ships."""

from systolic.tuning.cluster import Certificates, ClusterError, cluster
from systolic.tuning.function_result import FunctionTuning, LeftOut
from systolic.tuning.ranking import Ranking
from systolic.tuning.result import TuningResult
from systolic.tuning.saved import End, SavedTuningError
from systolic.tuning.search import COMPILE_LIMIT_S, MAX_TRIALS, StalledError, Watcher
from systolic.tuning.tune import TuneCallError, tune
