"""Turn a JAX function into a compiled TPU program on a machine without a TPU.

The compiler runs in worker processes, which may crash without harm:

    with WorkerPool() as pool:
        program = submit_compilation(pool, fn, args, target, cache=ProgramCache()).result()
"""

from systolic.compat.typical import typical
from systolic.compiler.arguments import MAX_ARGUMENT_BYTES, PlacedArray, abstract_arguments, argument_values
from systolic.compiler.blame import is_kernel_code, short_place, source_line, written_at
from systolic.compiler.cache import CacheWarning, ProgramCache, cache_folder
from systolic.compiler.contents import (
    DeviceExecutions,
    PallasOperands,
    device_executions,
    pallas_operands,
)
from systolic.compiler.deciding import Decision, TracedArgument, decisions, traced_arguments
from systolic.compiler.deferred import Deferred, Missing
from systolic.compiler.driver import compile_function
from systolic.compiler.endings import (
    CompilerCrash,
    CompilerOutOfMemory,
    CompilerTimeout,
    FunctionExit,
    WorkerEnded,
)
from systolic.compiler.errors import (
    CompilerError,
    CompilerFlagError,
    CompilerMissing,
    CompilerRefusal,
    RefusalKind,
    TaskError,
    check_available,
    compiler_is_there,
)
from systolic.compiler.jit_options import (
    giving_away,
    row_major,
    with_jit_options,
    with_options_of,
    without_jit_options,
)
from systolic.compiler.limits import WALL_TIMES
from systolic.compiler.mesh_place import MeshPlace
from systolic.compiler.named import (
    NamedFunction,
    NamedFunctionError,
    argument_example,
    argument_type,
    check_function_name,
    function_name,
    loaded_function,
    named_argument,
)
from systolic.compiler.named_calls import check_named_call
from systolic.compiler.peers import Peers
from systolic.compiler.pickling import sent_devices
from systolic.compiler.pool import WorkerPool
from systolic.compiler.program import CompiledProgram, Target, Topology
from systolic.compiler.sharded import ShardedFunction, with_virtual_devices
from systolic.compiler.slice_calls import check_sharded_call, with_slice_options
from systolic.compiler.slice_devices import StandInDevice, ordered_devices, slice_devices, slice_mesh, topology_of
from systolic.compiler.stage import at_stage
from systolic.compiler.stand_in import StandIn
from systolic.compiler.submit import submit_compilation, tracing_settings
from systolic.compiler.tracing import traced_jaxpr, under_settings
from systolic.support.versions import versions
