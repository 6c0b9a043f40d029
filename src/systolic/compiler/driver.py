"""Compile one function for one chip or slice, in a worker, which has the environment that libtpu needs."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from systolic.chips import SliceError
from systolic.compat import assigned_devices
from systolic.compiler.blame import source_line
from systolic.compiler.cache import ProgramCache
from systolic.compiler.constants import program_constants
from systolic.compiler.dump import ALL_LISTED, SOURCE_LINES_FLAG, Dump, MissingListingError, empty_dump, read_dump
from systolic.compiler.errors import CompilerError, CompilerFlagError, CompilerRefusal, RefusalKind, check_available
from systolic.compiler.memory import give_back_freed_memory
from systolic.compiler.named import NamedFunction
from systolic.compiler.program import CompiledProgram, Target, Topology
from systolic.compiler.stage import at_stage
from systolic.compiler.tracing import device_context, devices_of, trace, under_settings
from systolic.compiler.worker import DUMP_VARIABLE

# jax is imported inside the functions: this module's names are needed in processes that never compile.

# Part of every key. Raise it if the contents of an entry change, or the way in which a program is compiled.
_FORMAT_VERSION = 7

# XLA hands gathers, scatters and sorts to the SparseCores. A scatter there depends on which of its indices are equal,
# which the simulator does not know, so scatters stay on the TensorCore.
_SPARSE_CORE_WORK = ("scatter",)
_TRUTH_WORDS: dict[str, str] = {
    **dict.fromkeys(("true", "1", "yes", "t", "y"), "True"),
    **dict.fromkeys(("false", "0", "no", "f", "n"), "False"),
}
_COMPILER_OPTIONS = {f"xla_tpu_enable_offloading_{work}_to_sparsecore": "false" for work in _SPARSE_CORE_WORK}


def compile_function(
    fn: Callable[..., Any] | NamedFunction,
    args: Sequence[Any],
    target: Target,
    *,
    cache: ProgramCache | None,
    settings: Mapping[str, Any] | None = None,
    lines: bool = False,
) -> CompiledProgram:
    """Compile `fn(*args)` for one device of `target`, or for all of its slice. Nothing is executed.

    This runs in a worker; `submit_compilation` sends it there. libtpu writes its listings to the folder that the
    environment variable SYSTOLIC_DUMP_DIR names; they are read, and the folder is emptied.

    Args:
        fn: any function that `jax.jit` takes. Bind static arguments with `functools.partial`.
        args: pytrees of arrays or `jax.ShapeDtypeStruct`s. Only the shape and dtype of an array count, and for a slice
            the sharding.
        target: the chip, or the slice.
        cache: where to look first, and to store the program or the refusal; None: always compile.
        settings: values of `jax.config` to trace and lower under; None: the worker's own.
        lines: make the listings of kernels name the source line of each instruction. The program is the same, but has
            its own entry in the cache: it is compiled again if its source moves.

    Raises:
        CompilerRefusal: lowering or compiling was refused.
        CompilerFlagError: the compiler does not know one of the target's flags, or not its value.
        CompilerMissing: no libtpu.
        SliceError: nothing is sharded over the target's slice, or something over other devices than the slice's.
        CompilerError: libtpu does not know the target, or left no usable listing, or this is not a worker.
        Exception: whatever `fn` raises while it is traced.
    """
    import jax

    check_available()
    if DUMP_VARIABLE not in os.environ:
        raise CompilerError("compile_function needs the environment of a worker: use submit_compilation")
    dump = Path(os.environ[DUMP_VARIABLE])
    started = time.perf_counter()
    devices = devices_of(target)
    if lines:
        jax.clear_caches()  # otherwise JAX reuses a lowering without lines
    with under_settings(settings or {}), device_context(target, fn):
        traced = trace(fn, args, devices, sharded=target.slice is not None)
        with at_stage("lowering"):
            lowered = _lower(traced, lines=lines)
        assignment = () if target.slice is None else _assignment(lowered, devices, target.slice)
        key = _key(lowered.as_text(), target, devices[0], dump, assignment)
        if cache is not None and (cached := cache.get(key)) is not None:
            if isinstance(cached, CompilerRefusal):
                raise cached
            return cached
        empty_dump(dump)
        try:
            compiled, left = _compile_and_read(traced, lowered, target.flags, dump)
            compile_s = time.perf_counter() - started
        except CompilerRefusal as refusal:
            # A refusal that names a source line is not stored: lines move while the program stays the same. Such
            # refusals come at once anyway.
            if cache is not None and refusal.where is None:
                cache.put(key, refusal)
            raise
        finally:
            empty_dump(dump)
            give_back_freed_memory()
    program = _program(compiled, left, target=target, compile_s=compile_s, key=key, assignment=assignment)
    if cache is not None:
        cache.put(key, program)
    return program


def _assignment(lowered: Any, devices: Sequence[Any], topology: Topology) -> tuple[int, ...]:
    """Return the ids of the devices that a lowered function is for, in the order of its partitions."""
    assigned = assigned_devices(lowered)
    if len(devices) > 1 and (len(assigned) < 2 or assigned[0].platform != "tpu"):
        raise SliceError(
            f"nothing is sharded over the {len(devices)} devices of {topology.name}: give arguments a NamedSharding "
            "over a mesh of it (systolic.slice_mesh), or shardings to jax.jit, or use jax.shard_map"
        )
    ids = tuple(device.id for device in assigned)
    if sorted(ids) != sorted(device.id for device in devices):
        raise SliceError(
            f"the function is sharded over {len(ids)} of the {len(devices)} devices of {topology.name}: make a mesh of "
            "all of them (systolic.slice_mesh), or name a smaller slice"
        )
    return ids


def _lower(traced: Any, *, lines: bool) -> Any:
    try:
        # A kernel's body is lowered to bytecode that holds file names and lines. Without them the same program has the
        # same text, and so the same key, wherever its source is.
        with under_settings({} if lines else {"jax_traceback_in_locations_limit": 0}):
            return traced.lower(lowering_platforms=("tpu",))
    except Exception as error:  # noqa: BLE001 -- tracing is over: whatever fails now is the compiler's answer
        # Lower again with source locations: without them Pallas cannot write some of its error messages.
        blamed = _first_error(lambda: traced.lower(lowering_platforms=("tpu",))) or error
        default: RefusalKind = "unsupported" if isinstance(blamed, NotImplementedError) else "other"
        text = str(blamed) or type(blamed).__name__
        raise CompilerRefusal.from_text(text, default=default, where=source_line(blamed)) from blamed


def _compile_and_read(traced: Any, lowered: Any, flags: Mapping[str, str], dump: Path) -> tuple[Any, Dump]:
    with at_stage("compiling"):
        compiled = _compile(traced, lowered, flags)
        try:
            return compiled, read_dump(dump)
        except MissingListingError:
            empty_dump(dump)
    with at_stage("compiling again"):
        return _compile(traced, lowered, {**ALL_LISTED, **flags}), read_dump(dump)


def _compile(traced: Any, lowered: Any, flags: Mapping[str, str]) -> Any:
    import jax

    try:
        return _compiled(lowered, flags)
    except Exception as error:
        if isinstance(error, jax.errors.JaxRuntimeError):
            CompilerFlagError.raise_if_about(str(error), flags)
        blamed = error
        if "Mosaic" in str(error):
            # Mosaic refuses within milliseconds, before any code is generated: compiling again with locations is cheap.
            jax.clear_caches()  # otherwise JAX reuses the lowering without locations
            blamed = _first_error(lambda: _compiled(traced.lower(lowering_platforms=("tpu",)), flags)) or error
        elif not isinstance(error, jax.errors.JaxRuntimeError):
            raise
        raise CompilerRefusal.from_text(str(blamed), where=source_line(blamed)) from blamed


def _compiled(lowered: Any, flags: Mapping[str, str]) -> Any:
    import jax

    options = {**_COMPILER_OPTIONS, **flags}
    while True:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            # Another libtpu may lack an option. Then it also lacks the feature that the option turns off.
            added = options.keys() - flags.keys()
            unknown = [name for name in added if f"No such compile option: '{name}'" in str(error)]
            # XLA's own options take only True and False; libtpu's take all of these words.
            misspelled = [
                name
                for name, value in options.items()
                if value.lower() in _TRUTH_WORDS and f"option {name}, '{value}' is not a valid bool value" in str(error)
            ]
            if misspelled:
                options[misspelled[0]] = _TRUTH_WORDS[options[misspelled[0]].lower()]
            elif unknown:
                del options[unknown[0]]
            else:
                raise


def _first_error(action: Callable[[], Any]) -> Exception | None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 -- the error is the result
        return error
    return None


def _key(lowered_text: str, target: Target, device: Any, dump: Path, assignment: tuple[int, ...]) -> str:
    import jax

    flags = os.environ.get("LIBTPU_INIT_ARGS", "").split()
    flags = [flag for flag in flags if str(dump) not in flag and flag != SOURCE_LINES_FLAG]
    # The program's text does not contain the order of the mesh's devices.
    of_slice = {} if target.slice is None else {"slice": asdict(target.slice), "assignment": assignment}
    facts = {
        "format": _FORMAT_VERSION,
        "target": {name: value for name, value in asdict(target).items() if name not in ("flags", "slice")},
        "jax": jax.__version__,
        "compiler": [_libtpu_version(), device.client.platform_version],
        "flags": [flags, os.environ.get("XLA_FLAGS", "")],
        "options": {**_COMPILER_OPTIONS, **target.flags},
        "program": lowered_text,
        **of_slice,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _libtpu_version() -> str:
    import libtpu

    return libtpu.__version__


def _program(
    compiled: Any, left: Dump, *, target: Target, compile_s: float, key: str, assignment: tuple[int, ...]
) -> CompiledProgram:
    import jax

    memory = compiled.memory_analysis()
    cost = compiled.cost_analysis() or {}
    return CompiledProgram(
        **asdict(left),
        generated_code_bytes=memory.generated_code_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        cost_flops=cost.get("flops"),
        cost_bytes_accessed=cost.get("bytes accessed"),
        chip=target.name,
        jax_version=jax.__version__,
        libtpu_version=_libtpu_version(),
        compile_s=compile_s,
        key=key,
        from_cache=False,
        assignment=assignment,
        constants=_constants(compiled, assignment),
        peak_bytes=getattr(memory, "peak_memory_in_bytes", None),
    )


def _constants(compiled: Any, assignment: tuple[int, ...]) -> bytes:
    if len(assignment) < 2:
        return b""
    try:
        return program_constants(compiled.runtime_executable().serialize())
    except Exception:  # noqa: BLE001 -- without a serialized program its constants are unknown; few programs need them
        return b""
