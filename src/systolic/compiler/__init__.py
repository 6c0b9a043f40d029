"""Turns a JAX function into a compiled TPU program on a machine without a TPU.

The compiler runs in worker processes, which may crash without harm:

    with WorkerPool() as pool:
        program = submit_compilation(pool, fn, args, target, cache=ProgramCache()).result()
"""

from systolic.compiler.arguments import PlacedArray, abstract_arguments, argument_values
from systolic.compiler.blame import is_kernel_code, short_place, source_line, written_at
from systolic.compiler.cache import CacheWarning, ProgramCache, cache_folder
from systolic.compiler.contents import (
    DeviceExecutions,
    PallasOperands,
    device_executions,
    pallas_operands,
)
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
from systolic.compiler.jit_options import giving_away, row_major, with_jit_options, with_options_of
from systolic.compiler.limits import WALL_TIMES
from systolic.compiler.named import (
    NamedFunction,
    NamedFunctionError,
    check_function_name,
    function_name,
    named_argument,
)
from systolic.compiler.pool import WorkerPool
from systolic.compiler.program import CompiledProgram, Target, Topology
from systolic.compiler.sharded import ShardedFunction, with_virtual_devices
from systolic.compiler.slice_calls import check_sharded_call, with_slice_options
from systolic.compiler.slice_devices import slice_devices, slice_mesh, topology_of
from systolic.compiler.stage import at_stage
from systolic.compiler.stand_in import StandIn
from systolic.compiler.submit import submit_compilation, tracing_settings
from systolic.compiler.tracing import traced_jaxpr, under_settings
from systolic.compiler.typical import typical
from systolic.support.versions import versions

__all__ = [
    "WALL_TIMES",
    "CacheWarning",
    "CompiledProgram",
    "CompilerCrash",
    "CompilerError",
    "CompilerFlagError",
    "CompilerMissing",
    "CompilerOutOfMemory",
    "CompilerRefusal",
    "CompilerTimeout",
    "Deferred",
    "DeviceExecutions",
    "FunctionExit",
    "Missing",
    "NamedFunction",
    "NamedFunctionError",
    "PallasOperands",
    "PlacedArray",
    "ProgramCache",
    "RefusalKind",
    "ShardedFunction",
    "StandIn",
    "Target",
    "TaskError",
    "Topology",
    "WorkerEnded",
    "WorkerPool",
    "abstract_arguments",
    "argument_values",
    "at_stage",
    "cache_folder",
    "check_available",
    "check_function_name",
    "check_sharded_call",
    "compile_function",
    "compiler_is_there",
    "device_executions",
    "function_name",
    "giving_away",
    "is_kernel_code",
    "named_argument",
    "pallas_operands",
    "row_major",
    "short_place",
    "slice_devices",
    "slice_mesh",
    "source_line",
    "submit_compilation",
    "topology_of",
    "traced_jaxpr",
    "tracing_settings",
    "typical",
    "under_settings",
    "versions",
    "with_jit_options",
    "with_options_of",
    "with_slice_options",
    "with_virtual_devices",
    "written_at",
]
