"""Hide differences between versions of JAX, and hold all imports of its internals."""

from systolic.compat.devices import (
    abstract_mesh_in_all_threads,
    all_gather_alike,
    assigned_devices,
    attached_tpu_chips,
    cpu_devices,
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
    static_arguments,
)
from systolic.compat.grids import grid_sizes_are_cached
from systolic.compat.interpreter import (
    copies_between_devices_in_order,
    cores_compiled_once,
    end_interpreted_kernel,
    interpret_mode_is_forced,
    interpret_params,
    interpreted_effects,
    interpreted_failure,
    interpreter_reports,
    is_pipeline_write_back,
    left_over_memory,
    semaphore_waits,
    swap_past_the_end,
    watched_interpreter,
)
from systolic.compat.interpreter_conditions import conditions_of_runs
from systolic.compat.interpreter_gaps import empty_copies, interpreted_batches, operands_without_transfers
from systolic.compat.races import accesses_compared_at_once, clocks_of_copies, races_found
from systolic.compat.references import all_references, buffer_view
from systolic.compat.subcores import interpreted_subcores
