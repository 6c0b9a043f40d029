"""How long a step takes, and the pipeline model over the steps: what ranks the ways to cut a product."""

from systolic.cost.choose import THIN_ROWS, Choice, blocked_violations, chosen, configs, vmem_limit
from systolic.cost.model import ModelledTime, blocked_time, least_time_us
from systolic.cost.profile import Kind, MadeWith, Profile, ProfiledTile, Profiles, StepCost, shipped_profiles
from systolic.cost.profiled import profiled_choice, profiled_choices
from systolic.cost.walk import walked_time

__all__ = [
    "THIN_ROWS",
    "Choice",
    "Kind",
    "MadeWith",
    "ModelledTime",
    "Profile",
    "ProfiledTile",
    "Profiles",
    "StepCost",
    "blocked_time",
    "blocked_violations",
    "chosen",
    "configs",
    "least_time_us",
    "profiled_choice",
    "profiled_choices",
    "shipped_profiles",
    "vmem_limit",
    "walked_time",
]
