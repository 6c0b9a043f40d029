"""Turns a JAX function into a compiled TPU program on a machine without a TPU.

The compiler runs in worker processes, which may crash without harm:

    with WorkerPool() as pool:
        compile_cached = functools.partial(compile_function, cache=ProgramCache())
        program = pool.submit(compile_cached, fn, abstract_arguments(args), target).result()
"""

from systolic.compiler.cache import CacheWarning, ProgramCache, cache_folder
from systolic.compiler.driver import abstract_arguments, compile_function
from systolic.compiler.errors import (
    CompilerCrash,
    CompilerError,
    CompilerMissing,
    CompilerRefusal,
    CompilerTimeout,
    RefusalKind,
    TaskError,
    check_available,
)
from systolic.compiler.pool import WorkerPool
from systolic.compiler.program import CompiledProgram, Target

__all__ = [
    "CacheWarning",
    "CompiledProgram",
    "CompilerCrash",
    "CompilerError",
    "CompilerMissing",
    "CompilerRefusal",
    "CompilerTimeout",
    "ProgramCache",
    "RefusalKind",
    "Target",
    "TaskError",
    "WorkerPool",
    "abstract_arguments",
    "cache_folder",
    "check_available",
    "compile_function",
]
