"""Record the jitted calls of a program: each distinct program goes to a worker once, and its calls are counted."""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from systolic.chips import Chip, FlagValue, with_flags
from systolic.chips import chip as chip_named
from systolic.compat import abstract_mesh_in_all_threads, interpret_params
from systolic.compiler import CompilerError, WorkerPool, check_available, sent_devices
from systolic.running.call import JittedCall
from systolic.running.host_slice import HostSlice, one_device_notes
from systolic.running.memory import HbmWatch
from systolic.running.patches import jit_patches, registration_patches
from systolic.running.program import Program, UnsentError
from systolic.running.replacing import replaced
from systolic.running.results import ScriptRun
from systolic.running.sent import Registration, compiled_for_a_tpu
from systolic.running.timed_function import TimedFunction
from systolic.running.zeros import Zeros
from systolic.steps import TIME_LIMIT_S, StepRun, submit_step
from systolic.support.bugs import runs_user_code

_COMPILED = "/jax/core/compile/backend_compile_duration"  # an event of `jax.monitoring`
_ACTIVE: list[Recording] = []  # at most one, because names are replaced in the whole process


class RecordingError(ValueError):
    """A recording begins inside another."""


class Recording:
    """The jitted calls of the code in `with recording.active():`.

    Args:
      pool: compiles and simulates while the code runs.
      chip: the chip.
      values: True: results are computed on the CPU; False: they are zeros.
      spans: number of timeline spans of each kind to keep per program, from the beginning and from the end.
      started: called with the name and arguments of each new program.
      host_slice: the slice that the code runs on; None: one device.
    """

    def __init__(
        self,
        pool: WorkerPool,
        chip: Chip,
        *,
        values: bool = True,
        spans: int = 0,
        started: Callable[[str], object] = lambda _: None,
        host_slice: HostSlice | None = None,
    ) -> None:
        self._pool, self._chip, self._values, self._spans, self._started = pool, chip, values, spans, started
        self._slice = host_slice
        self._programs: dict[Hashable, Program] = {}
        self._sequence = array("I")
        self._registrations: list[Registration] = []
        self._untimed: Counter[str] = Counter()
        self._interpreter = interpret_params()
        self._hbm = HbmWatch(chip)
        self._zeros = Zeros()
        self._lock = threading.Lock()
        self._thread = threading.local()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record the calls of the block. Functions that it jits still work afterwards.

        Raises:
          RecordingError: another recording is active.
        """
        import jax
        from jax.experimental.pallas import tpu as pltpu

        if _ACTIVE:
            raise RecordingError("another recording is active in this process: end it before this one begins")
        with ExitStack() as stack:
            stack.enter_context(replaced(jit_patches(_called)))
            stack.enter_context(replaced(registration_patches(self._registrations)))
            stack.enter_context(replaced(compiled_for_a_tpu()))
            stack.enter_context(replaced(one_device_notes() if self._slice is None else self._slice.replacements()))
            stack.enter_context(sent_devices({} if self._slice is None else self._slice.stand_ins))
            stack.enter_context(pltpu.force_tpu_interpret_mode(self._interpreter))  # also outside jitted functions
            jax.monitoring.register_event_duration_secs_listener(self._compiled)
            stack.callback(jax.monitoring.unregister_event_duration_listener, self._compiled)
            _ACTIVE.append(self)
            stack.callback(_ACTIVE.clear)
            yield

    def jobs(self) -> list[tuple[str, Future[StepRun]]]:
        """Return the label and the job of each program."""
        return [(program.label, program.job) for program in self._programs.values()]

    def result(self) -> ScriptRun:
        """Wait for the workers, and return the times.

        Raises:
          CompilerMissing: there is no TPU compiler on the machine.
          SystolicBug: this package is at fault, not the program.
        """
        return ScriptRun(
            chip=self._chip.name,
            topology="" if self._slice is None else self._slice.topology,
            programs=tuple(program.timed() for program in self._programs.values()),
            sequence=tuple(self._sequence),
            capacity_bytes=self._hbm.capacity_bytes,
            live_bytes=self._hbm.peak_bytes,
            largest=self._hbm.largest,
            untimed=dict(self._untimed.most_common()),
        )

    def call(self, function: TimedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a call, and count it if it is the outermost."""
        if getattr(self._thread, "is_inside", False):
            return _original(function, args, kwargs)
        with self._inside():
            call = JittedCall.of(function, args, kwargs)
            if call is None:
                return _original(function, args, kwargs)
            with self._lock:
                program = self._programs.get(call.key) or self._submitted(call)
            held_bytes = self._hbm.look()
            result = self._computed(call, program)
        with self._lock:
            program.calls += 1
            program.live_bytes = max(program.live_bytes, held_bytes)
            self._sequence.append(program.number)
        return result

    def _submitted(self, call: JittedCall) -> Program:
        """Send a new program to a worker."""
        import jax

        with self._as_on_chip():
            traced = _traced(call)
            is_sharded = self._slice is not None and self._slice.is_over(call.leaves, call.options, traced.jaxpr)
            shapes = None if self._values else _result_shapes(traced) if is_sharded else traced.out_info
        host_slice = self._slice if is_sharded else None
        program = Program(
            number=len(self._programs),
            function=call.function,
            arguments=call.text,
            job=Future(),
            shapes=shapes,
            donated=[leaf.donated for leaf in jax.tree.leaves(traced.args_info)],
        )
        self._started(program.label)
        try:
            step = call.step(self._registrations, program.donated, self._zeros.is_computed, host_slice)
            topology = None if host_slice is None else host_slice.topology
            program.job = submit_step(
                self._pool, step, self._chip, name=program.label, topology=topology, spans=self._spans
            )
        except CompilerError as error:
            program.job.set_exception(error)
        except Exception as error:  # noqa: BLE001 -- pickling a user's object may raise anything
            text = f"it cannot be sent to a compiler process ({error}); keep such objects out of jitted functions"
            program.job.set_exception(UnsentError(text))
        self._programs[call.key] = program
        return program

    def _computed(self, call: JittedCall, program: Program) -> Any:
        import jax

        if self._values:
            with self._as_on_chip():
                return _original(call.function, call.args, call.kwargs)
        for leaf, is_donated in zip(call.leaves, program.donated, strict=True):
            if is_donated and isinstance(leaf, jax.Array):
                leaf.delete()
        return self._zeros.like(program.shapes)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Mark this thread's calls as parts of the recorded call."""
        self._thread.is_inside = True
        try:
            yield
        finally:
            self._thread.is_inside = False

    @contextmanager
    def _as_on_chip(self) -> Iterator[None]:
        """Make this thread interpret kernels, and answer code that asks for the device while it is traced."""
        import jax
        from jax.experimental.pallas import tpu as pltpu
        from jax.sharding import AbstractDevice, AbstractMesh

        kind, cores = self._chip.device_kind, self._chip.cores_per_device
        device = AbstractDevice(device_kind=kind, num_cores=cores, platform="tpu")
        has_mesh = bool(jax.sharding.get_abstract_mesh().axis_names)  # the program has set its own
        mesh = nullcontext() if has_mesh else abstract_mesh_in_all_threads(AbstractMesh((), (), abstract_device=device))
        with pltpu.force_tpu_interpret_mode(self._interpreter), mesh:
            yield

    def _compiled(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        """Count a compilation by JAX that no recorded call has caused."""
        if event == _COMPILED and not getattr(self._thread, "is_inside", False):
            self._untimed[str(kwargs.get("fun_name", "?")).removeprefix("jit(").removesuffix(")")] += 1


def _called(function: TimedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Pass a call to the active recording, which may be another one than when the function was jitted."""
    return _ACTIVE[0].call(function, args, kwargs) if _ACTIVE else _original(function, args, kwargs)


@runs_user_code
def _original(function: TimedFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return function.jitted(*args, **kwargs)


@runs_user_code
def _traced(call: JittedCall) -> Any:
    return call.function.jitted.trace(*call.args, **call.kwargs)


def _result_shapes(traced: Any) -> Any:
    """Return the shapes of a call's results with their shardings, which XLA may have chosen for this process."""
    import jax

    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        traced.out_info,
        traced.lower().compile().output_shardings,
    )


@contextmanager
def record(
    chip: str | Chip = "v5e",
    *,
    topology: str | None = None,
    values: bool = True,
    flags: Mapping[str, FlagValue] | None = None,
    workers: int = 2,
    spans: int = 0,
    time_limit_s: float = TIME_LIMIT_S,
    memory_limit_bytes: int | None = None,
) -> Iterator[Recording]:
    """Run the block as if on a TPU: each jitted call is timed by the simulator, and computed on the CPU.

    `recording.result()`, inside the block or after it, waits for the times. Functions must be jitted inside the block:
    it replaces `jax.jit` and other public names, and imports that come before it hold the former ones.

        with systolic.record("v6e") as recording:
            import train

            train.main()
        print(recording.result())

    Args:
      chip: a name such as "v6e", or your own record.
      topology: chips of the slice along each axis, "2x4" on v5e and v6e, "2x2x1" on the others; None: one device. This
        process gets as many CPU devices, unless JAX has started before.
      values: True: results are computed, Pallas calls in TPU interpret mode; False: they are zeros of the right shapes.
      flags: compiler flags by name.
      workers: number of processes that compile and simulate.
      spans: number of timeline spans of each kind to keep per program, from the beginning and from the end.
      time_limit_s: seconds of CPU time that compiling and simulating one program may take.
      memory_limit_bytes: for a compiler process and its children; None: an equal share of the machine's memory.

    Raises:
      UnknownChipError: no such chip.
      SliceError: no such slice, or JAX has started with fewer devices than it has.
      CompilerMissing: there is no TPU compiler on the machine.
      RecordingError: another recording is active.
    """
    check_available()
    target_chip = with_flags(chip_named(chip), flags)
    host_slice = None if topology is None else HostSlice.of(target_chip, topology)
    with WorkerPool(workers, time_limit_s, memory_limit_bytes) as pool:
        recording = Recording(pool, target_chip, values=values, spans=spans, host_slice=host_slice)
        with recording.active():
            yield recording
        wait([job for _, job in recording.jobs()])
