"""The time of a step, and the pipeline model over the steps, by which configurations of a product are ranked."""

from systolic.cost.bound import least_time_us
from systolic.cost.estimate import code_bundles, estimated_cost
from systolic.cost.pipeline import ModelledTime, pipeline_time
from systolic.cost.profile import Kind, MadeWith, Profile, ProfiledTile, Profiles, StepCost, shipped_profiles
from systolic.cost.profiled import profiled_configs
from systolic.cost.ranking import TimedConfig, estimated_config, ranked_configs, timed_config
from systolic.cost.roofline import Roofline, dtype_on, machine_roofline, repeated_us, roofline
from systolic.cost.search_space import MAX_BUNDLES, SKINNY_ROWS
from systolic.cost.step_cost import CostProvenance, step_cost
