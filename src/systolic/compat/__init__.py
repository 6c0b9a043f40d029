"""Where versions of JAX differ, and what only its inside can tell: all such places are in this folder."""

from systolic.compat.devices import (
    abstract_mesh_in_all_threads,
    assigned_devices,
    attached_tpu_chips,
    shape_with_mesh_axes,
    tensorcore_mesh,
    varying_alike,
)
from systolic.compat.functions import (
    donated_arguments,
    intercepted,
    jit_shardings,
    key_implementation,
    low_jaxpr,
    scan_counts,
)
from systolic.compat.interpreter import (
    end_interpreted_kernel,
    interpret_mode_is_forced,
    interpret_params,
    interpreted_effects,
    interpreted_failure,
    interpreter_reports,
    races_found,
    semaphore_waits,
    swap_past_the_end,
    unkind_interpreter,
    watched_interpreter,
)

__all__ = [
    "abstract_mesh_in_all_threads",
    "assigned_devices",
    "attached_tpu_chips",
    "donated_arguments",
    "end_interpreted_kernel",
    "intercepted",
    "interpret_mode_is_forced",
    "interpret_params",
    "interpreted_effects",
    "interpreted_failure",
    "interpreter_reports",
    "jit_shardings",
    "key_implementation",
    "low_jaxpr",
    "races_found",
    "scan_counts",
    "semaphore_waits",
    "shape_with_mesh_axes",
    "swap_past_the_end",
    "tensorcore_mesh",
    "unkind_interpreter",
    "varying_alike",
    "watched_interpreter",
]
