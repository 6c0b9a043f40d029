"""Operation costs · What an operation costs on a register, in cycles, in place of a coloured dot.

The details page sorts operations into cheap, medium and expensive, and axes into slow and slowest. Here each operation
is compiled for each chip and simulated, and has a number: cycles for a full vector register of 4 KiB, which is
[8, 128] of float32, [16, 128] of bfloat16 or [32, 128] of int8.

The method: two kernels differ in nothing but how often they do the operation. Both hold 32 registers in VMEM; one does
it R times to each, the other 2R times. The difference of their cycles over 32·R is the cost: copies, loads, stores and
the start of the kernel drop out. 32 chains that are independent keep the units full, so it is the cost where there is
work enough, not the latency of one result.

The compiler must not fold the repetitions. So the step takes a register and its neighbour, a[i] = op(a[i], a[i−1]): a
constant as the other operand would be added up, or divided by once for all registers, and max(max(a, c), d) be one max
too few. What still folds (the absolute value of one) is followed by an addition, whose cost is taken off. The
instructions that were issued are counted in the same way and stand beside the cycles, by the unit that they go to: vpu
for arithmetic, eup for transcendental functions, xlu across lanes. None of them is missing.

For sums, broadcasts, transposes and reshapes the repetitions are blocks, 4 or 8: each is read from VMEM, goes through
the operation and is added to a running result. "Read and add" is the cost without an operation; what costs no more is
free. A load may broadcast a row or take rows apart on its way, and then also these are free.

Cycles of one unit hide behind those of another. Four registers of simple arithmetic take a cycle, so a + b costs 0.25;
exp is one instruction of the transcendental unit, which takes one register a cycle, and some arithmetic beside it.
Bundles are counted as the compiler scheduled them; a chip may stall where the model does not. There is no grid.

The page that this follows: Pallas TPU, "Writing TPU kernels with Pallas".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Shaped

from systolic.chips import Chip
from systolic.compiler import CompilerError, CompilerMissing, WorkerPool, check_available
from systolic.lessons.lesson import Lesson, Part
from systolic.lessons.operations import ELEMENTWISE, READ, SHAPINGS, Elementwise, Shaping
from systolic.lessons.showing import show
from systolic.measure import Measurement, submit_simulation
from systolic.simulator import OpRun, SimulationError

REGISTERS = 32
BLOCKS = 4
REGISTER_BYTES = 4096
UNITS = ("vpu", "eup", "xlu")  # arithmetic, transcendental, across lanes

_FREE = 1.25  # times the cost of reading and adding: the schedules of so few blocks differ by a cycle or two
_TOLD = (("a + b", "float32"), ("a / b", "float32"), ("exp(a)", "float32"), ("sin(a)", "float32"), ("a // b", "int32"))

Operation = Elementwise | Shaping


def repeated_kernel(
    x_vmem,  # [registers, rows, 128] of the operation's dtype, a register in each
    out_vmem,  # the same
    *,
    operation: Elementwise,
    times: int,
):
    """Does an operation to every register, `times` in a row; the neighbour is the other operand."""
    registers = [x_vmem[i] for i in range(x_vmem.shape[0])]
    for _ in range(times):
        registers = [operation.step(a, registers[i - 1]) for i, a in enumerate(registers)]
    for i, a in enumerate(registers):
        out_vmem[i] = a


def repeated(x: Shaped[Array, "registers rows 128"], *, operation: Elementwise, times: int) -> Array:
    """An elementwise operation, `times` to each register."""
    kernel = functools.partial(repeated_kernel, operation=operation, times=times)
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="repeated")(x)


def summed_kernel(
    x_vmem,  # [blocks, …] of the operation's dtype
    out_vmem,  # the result of one block
    *,
    operation: Shaping,
    times: int,
):
    """The sum of what an operation makes of the first `times` blocks."""
    total = operation.function(x_vmem[0])
    for i in range(1, times):
        total = total + operation.function(x_vmem[i])
    out_vmem[...] = total


def summed(x: Shaped[Array, " blocks *shape"], *, operation: Shaping, times: int) -> Array:
    """An operation on shapes, of `times` blocks."""
    out = jax.eval_shape(operation.function, jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
    kernel = functools.partial(summed_kernel, operation=operation, times=times)
    return pl.pallas_call(kernel, out_shape=out, name="summed")(x)


def repeated_reference(x: Array, *, operation: Elementwise, times: int) -> Array:
    """`repeated` without registers."""
    for _ in range(times):
        x = operation.step(x, jnp.roll(x, 1, axis=0))
    return x


def summed_reference(x: Array, *, operation: Shaping, times: int) -> Array:
    """`summed` without a kernel."""
    return sum(operation.function(x[i]) for i in range(times))  # pyright: ignore[reportReturnType]


def register_shape(dtype: str) -> tuple[int, int]:
    """Rows and lanes of a full register."""
    return REGISTER_BYTES // 128 // jnp.dtype(dtype).itemsize, 128


def programs(operation: Operation) -> tuple[tuple[Part, Part], float]:
    """The two programs whose difference is the cost, and by how many operations on a register they differ."""
    if isinstance(operation, Elementwise):
        times = operation.repetitions
        args = (jax.ShapeDtypeStruct((REGISTERS, *register_shape(operation.dtype)), operation.dtype),)
        fn, registers = repeated, REGISTERS
    else:
        times = BLOCKS
        block = jax.ShapeDtypeStruct(operation.shape, operation.dtype)
        counted = jax.eval_shape(operation.function, block) if operation.after else block
        args = (jax.ShapeDtypeStruct((2 * BLOCKS, *operation.shape), operation.dtype),)
        fn, registers = summed, counted.size * counted.dtype.itemsize / REGISTER_BYTES
    once, twice = (
        Part(
            name=f"{operation.dtype} {operation.name}, {many} times",
            fn=functools.partial(fn, operation=operation, times=many),
            args=args,
        )
        for many in (times, 2 * times)
    )
    return (once, twice), times * registers


def together(*arrays: Array, operations: Sequence[Operation], plain: bool) -> tuple[Array, ...]:
    """Every operation once, of an array of its own: for the run in interpret mode, and its reference."""
    results = []
    for x, operation in zip(arrays, operations, strict=True):
        if isinstance(operation, Elementwise):
            results.append((repeated_reference if plain else repeated)(x, operation=operation, times=1))
        else:
            results.append((summed_reference if plain else summed)(x, operation=operation, times=2))
    return tuple(results)


def checked(operations: Sequence[Operation], name: str) -> Part:
    """A part that runs the operations and compares each with float64; integers have to be equal."""
    shapes = [
        (2, *(register_shape(each.dtype) if isinstance(each, Elementwise) else each.shape)) for each in operations
    ]
    return Part(
        name=name,
        fn=functools.partial(together, operations=operations, plain=False),
        args=tuple(jax.ShapeDtypeStruct(shape, each.dtype) for shape, each in zip(shapes, operations, strict=True)),
        reference=functools.partial(together, operations=operations, plain=True),
        simulated=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one operation on one chip, for a register; what it needs besides is taken off.

    `issued` are instructions by unit. Refused by the compiler: `cycles` is None, and there is a reason.
    """

    operation: Operation
    chip: str
    cycles: float | None = None
    issued: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    def less(self, other: Cost) -> Cost:
        """Without the cost of another operation."""
        if self.cycles is None or other.cycles is None:
            return replace(self, cycles=None, reason=self.reason or other.reason)
        issued = {unit: count - other.issued[unit] for unit, count in self.issued.items()}
        return replace(self, cycles=self.cycles - other.cycles, issued=issued)

    def row(self) -> dict[str, object]:
        """As a line of a table."""
        return {
            "group": self.operation.group,
            "operation": self.operation.name,
            "dtype": self.operation.dtype,
            "page": self.operation.page or None,
            "chip": self.chip,
            "status": "refused" if self.cycles is None else "ok",
            "cycles": None if self.cycles is None else round(self.cycles, 2),
            **{unit: round(self.issued.get(unit, 0.0), 1) or None for unit in UNITS},
            "reason": self.reason or None,
        }


def costs(operations: Sequence[Operation], chips: Sequence[Chip]) -> tuple[Cost, ...]:
    """The cost of every operation on every chip.

    Args:
      operations: those that another one names as `beside` among them.
      chips: to compile for.

    Raises:
      CompilerMissing: there is no TPU compiler on this machine.
    """
    check_available()
    with WorkerPool(max_workers=2) as pool:
        jobs = [(operation, chip, *_submitted(pool, operation, chip)) for operation in operations for chip in chips]
        whole = {(job[0].name, job[0].dtype, job[1].name): _cost(*job) for job in jobs}
    found = []
    for (_, dtype, chip), cost in whole.items():
        beside = cost.operation.beside if isinstance(cost.operation, Elementwise) else ""
        found.append(cost.less(whole[beside, dtype, chip]) if beside else cost)
    return tuple(found)


def _submitted(pool: WorkerPool, operation: Operation, chip: Chip) -> tuple[list[Future[Measurement]], float]:
    parts, count = programs(operation)
    return [
        submit_simulation(pool, each.fn, each.args, chip, label=f"{each.name} for {chip.name}") for each in parts
    ], count


def _cost(operation: Operation, chip: Chip, pair: Sequence[Future[Measurement]], count: float) -> Cost:
    try:
        once, twice = (_kernel(future.result()) for future in pair)
    except CompilerMissing:
        raise
    except (CompilerError, SimulationError) as error:
        # After the reason the compiler quotes its own code, and where it was written.
        reason = str(error).splitlines()[0].split(" (at ")[0].split(": %")[0].split(", but")[0]
        return Cost(operation=operation, chip=chip.name, reason=reason)
    return Cost(
        operation=operation,
        chip=chip.name,
        cycles=(twice.cycles - once.cycles) / count,
        issued={unit: (twice.issued.get(unit, 0) - once.issued.get(unit, 0)) / count for unit in UNITS},
    )


def _kernel(measured: Measurement) -> OpRun:
    assert measured.run is not None
    # XLA may turn the result round afterwards, which is an operation of its own.
    return next(op for op in measured.run.cores[0].ops if op.name.startswith(("repeated", "summed")))


def lesson(chips: Sequence[Chip], operations: Sequence[Operation] = (*ELEMENTWISE, *SHAPINGS)) -> Lesson:
    """The table of the details page in cycles."""
    run = show([checked(operations, "every operation")], chips[:1])
    found = costs(operations, chips)
    cycles = {(each.operation.name, each.operation.dtype, each.chip): each.cycles for each in found}

    def said(name: str, dtype: str) -> str:
        each = [(chip.name, cycles[name, dtype, chip.name]) for chip in chips]
        return f"{name} ({dtype}) " + ", ".join(f"{chip} {cost:.3g}" for chip, cost in each if cost is not None)

    def is_free(each: Operation) -> bool:
        pairs = [(cycles[each.name, each.dtype, chip.name], cycles[READ, each.dtype, chip.name]) for chip in chips]
        return all(cost is not None and read is not None and cost <= _FREE * read for cost, read in pairs)

    known = {(each.name, each.dtype) for each in operations}
    free = [
        f"{each.name} ({each.dtype})"
        for each in operations
        if isinstance(each, Shaping) and each.name != READ and (READ, each.dtype) in known and is_free(each)
    ]
    folded = [
        f"{each.operation.name} ({each.operation.dtype}) on {each.chip}"
        for each in found
        if isinstance(each.operation, Elementwise) and each.cycles is not None and sum(each.issued.values()) < 0.5
    ]
    refused = {f"{each.operation.name} ({each.operation.dtype}): {each.reason}" for each in found if each.reason}
    return Lesson(
        name="operation_costs",
        title="Cycles for a register of 4 KiB, by operation",
        lines=(
            f"{len(operations)} operations, run in interpret mode against float64: {run.shown[0].status}.",
            f"Folded away by the compiler: {'; '.join(folded) or 'none'}.",
            "Cycles for a register: " + "; ".join(said(*pair) for pair in _TOLD if pair in known) + ".",
            f"No dearer than to read and add the same registers, on {', '.join(chip.name for chip in chips)}: "
            f"{'; '.join(free) or 'none'}.",
            f"Refused by the compiler: {'; '.join(sorted(refused)) or 'none'}",
        ),
        rows=tuple(each.row() for each in found),
        ok=run.ok and not folded,
    )


if __name__ == "__main__":
    import sys

    from systolic.cli import main

    sys.exit(main(["lessons", "operation_costs", *sys.argv[1:]]))
