"""Write docs/operation_costs.md and docs/operation_costs/: the cost of an operation on a register, in cycles, by chip.

    python benchmarks/operation_costs.py docs/operation_costs.md --chip v5e,v5p,v6e,v7x

It compiles two kernels for each operation and chip, which takes minutes. Compiled programs are cached.

JAX's page on writing kernels calls operations cheap, medium or expensive. This script gives numbers: cycles for a full
vector register of 4 KiB, which is [8, 128] of float32, [16, 128] of bfloat16 or [32, 128] of int8.

Method: two kernels differ only in how often they repeat the operation. Both hold 32 registers in VMEM; one repeats the
operation R times on each, the other 2R times. The cost is the difference of their cycles over 32·R, so copies, loads,
stores and the start of the kernel cancel. 32 independent chains keep the units full, so the cost is that of a busy unit
and not the latency of one result.

The compiler must not fold the repetitions. So a step combines a register with its neighbor, a[i] = op(a[i], a[i−1]). If
the second operand were a constant, the compiler would add it up over all steps, or divide by it once for all registers.
An operation that still folds, such as the absolute value, is followed by an addition, whose cost is subtracted. Issued
instructions are counted in the same way, by unit: vpu for arithmetic, eup for transcendental functions, xlu across
lanes.

For sums, broadcasts, transposes and reshapes, 4 or 8 blocks replace the repetitions: each block is read from VMEM,
goes through the operation and is added to a running result. "Read and add" is the cost without an operation, so an
operation that costs no more is free. A load can also broadcast a row or take rows apart, which makes these free too.

Before the page is written, every operation runs in interpret mode and is compared with float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from operation_cost_pages import UNITS, Cost, Operation, pages
from operations import ELEMENTWISE, SHAPINGS, Elementwise, Shaping

from systolic.checking.running import run_checks
from systolic.chips import Chip
from systolic.cli.options import chip_option
from systolic.compiler import CompilerError, CompilerMissing, WorkerPool, check_available
from systolic.simulator import OpRun, SimulationError
from systolic.timing import Measurement, submit_simulation

REGISTERS = 32
BLOCKS = 4
REGISTER_BYTES = 4096

Program = Callable[[Array], Array]


def repeated_kernel(
    x_vmem,  # [registers, rows, 128] of the operation's dtype, a register in each
    out_vmem,  # the same
    *,
    operation: Elementwise,
    times: int,
):
    """Apply an operation to every register, `times` in a row; the neighbor is the other operand."""
    registers = [x_vmem[i] for i in range(x_vmem.shape[0])]
    for _ in range(times):
        registers = [operation.step(a, registers[i - 1]) for i, a in enumerate(registers)]
    for i, a in enumerate(registers):
        out_vmem[i] = a


def repeated(x: Array, *, operation: Elementwise, times: int) -> Array:
    """Apply an elementwise operation `times` to each register."""
    kernel = functools.partial(repeated_kernel, operation=operation, times=times)
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="repeated")(x)


def summed_kernel(
    x_vmem,  # [blocks, …] of the operation's dtype
    out_vmem,  # the result of one block
    *,
    operation: Shaping,
    times: int,
):
    """Add up an operation's results for the first `times` blocks."""
    total = operation.function(x_vmem[0])
    for i in range(1, times):
        total = total + operation.function(x_vmem[i])
    out_vmem[...] = total


def summed(x: Array, *, operation: Shaping, times: int) -> Array:
    """Call `summed_kernel` on `times` blocks."""
    out = jax.eval_shape(operation.function, jax.ShapeDtypeStruct(x.shape[1:], x.dtype))
    kernel = functools.partial(summed_kernel, operation=operation, times=times)
    return pl.pallas_call(kernel, out_shape=out, name="summed")(x)


def repeated_reference(x: Array, *, operation: Elementwise, times: int) -> Array:
    """Compute `repeated` without registers."""
    for _ in range(times):
        x = operation.step(x, jnp.roll(x, 1, axis=0))
    return x


def summed_reference(x: Array, *, operation: Shaping, times: int) -> Array:
    """Compute `summed` without a kernel."""
    return sum(operation.function(x[i]) for i in range(times))  # pyright: ignore[reportReturnType]


def register_shape(dtype: str) -> tuple[int, int]:
    """Return rows and lanes of a full register."""
    return REGISTER_BYTES // 128 // jnp.dtype(dtype).itemsize, 128


def programs(operation: Operation) -> tuple[tuple[Program, Program], tuple[Any, ...], float]:
    """Return the two programs whose difference is the cost, their arguments, and the difference in operations."""
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
    once, twice = (functools.partial(fn, operation=operation, times=count) for count in (times, 2 * times))
    return (once, twice), args, times * registers


def together(*arrays: Array, operations: Sequence[Operation], plain: bool) -> tuple[Array, ...]:
    """Run every operation once on its own array, by the kernels or in plain JAX."""
    results = []
    for x, operation in zip(arrays, operations, strict=True):
        if isinstance(operation, Elementwise):
            results.append((repeated_reference if plain else repeated)(x, operation=operation, times=1))
        else:
            results.append((summed_reference if plain else summed)(x, operation=operation, times=2))
    return tuple(results)


def faults(operations: Sequence[Operation], chip: Chip) -> list[str]:
    """Return the errors of the operations, run in interpret mode and compared with float64; integers must be exact."""
    shapes = [
        (2, *(register_shape(operation.dtype) if isinstance(operation, Elementwise) else operation.shape))
        for operation in operations
    ]
    outcome = run_checks(
        functools.partial(together, operations=operations, plain=False),
        tuple(
            jax.ShapeDtypeStruct(shape, operation.dtype) for shape, operation in zip(shapes, operations, strict=True)
        ),
        reference=functools.partial(together, operations=operations, plain=True),
        chip=chip,
        seeds=(0, 1),
    )
    errors = [str(finding) for finding in outcome.findings if finding.grade == "error"]
    return errors if outcome.summary.ran else [*errors, "the operations did not run"]


def costs(operations: Sequence[Operation], chips: Sequence[Chip]) -> tuple[Cost, ...]:
    """Return the cost of every operation on every chip.

    Args:
      operations: must include those that another one names as `beside`.
      chips: to compile for.

    Raises:
      CompilerMissing: there is no TPU compiler on this machine.
    """
    check_available()
    with WorkerPool(max_workers=2) as pool:
        jobs = [(operation, chip, *_submitted(pool, operation, chip)) for operation in operations for chip in chips]
        gross_costs = {(job[0].name, job[0].dtype, job[1].name): _cost(*job) for job in jobs}
    net_costs = []
    for (_, dtype, chip), cost in gross_costs.items():
        subtracted = cost.operation.beside if isinstance(cost.operation, Elementwise) else ""
        net_costs.append(cost.less(gross_costs[subtracted, dtype, chip]) if subtracted else cost)
    return tuple(net_costs)


def _submitted(pool: WorkerPool, operation: Operation, chip: Chip) -> tuple[list[Future[Measurement]], float]:
    pair, args, count = programs(operation)
    label = f"{operation.dtype} {operation.name} for {chip.name}"
    return [submit_simulation(pool, fn, args, chip, label=label) for fn in pair], count


def _cost(operation: Operation, chip: Chip, pair: Sequence[Future[Measurement]], count: float) -> Cost:
    try:
        once, twice = (_kernel(future.result()) for future in pair)
    except CompilerMissing:
        raise
    except (CompilerError, SimulationError) as error:
        # After the reason the compiler quotes its own code and source location.
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
    # XLA may transpose the result afterwards, in a separate operation.
    return next(op for op in measured.run.cores[0].ops if op.name.startswith(("repeated", "summed")))


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@chip_option("v5e,v5p,v6e,v7x")
def main(target: Path, chips: tuple[Chip, ...]) -> None:
    """Write TARGET, and further pages into a folder next to it."""
    operations = (*ELEMENTWISE, *SHAPINGS)
    if problems := faults(operations, chips[0]):
        raise click.ClickException("; ".join(problems))
    priced = costs(operations, chips)
    folded = [
        f"{cost.operation.name} ({cost.operation.dtype}) on {cost.chip}"
        for cost in priced
        if isinstance(cost.operation, Elementwise) and cost.cycles is not None and sum(cost.issued.values()) < 0.5
    ]
    if folded:
        raise click.ClickException(f"the compiler folded {'; '.join(folded)}")
    for name, text in pages(priced, target.name, (__doc__ or "").split("\n\n")[1]).items():
        path = target.parent / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
