"""`systolic.explain`: why does this function take so long, and what would change it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from systolic.chips import Chip
from systolic.chips import chip as chip_named
from systolic.compiler import (
    CompilerError,
    WorkerPool,
    abstract_arguments,
    argument_values,
    check_available,
    function_name,
    tracing_settings,
    versions,
)
from systolic.explaining.baseline import Product, product_of
from systolic.explaining.explanation import Explanation, Program, ProgramRole, Saving
from systolic.explaining.facts import regions, roofline, vmem_map
from systolic.explaining.limits import limit_of, main_op, windows
from systolic.explaining.study import Study, study
from systolic.explaining.trying import Function, Tried, Trying
from systolic.measure import Measurement, submit_simulation
from systolic.simulator import SimulatedRun, SimulationError

_SPANS = 400  # of each kind, from the beginning and from the end: what the pictures show
_WORTH_SAYING = 0.005  # share of the time below which a saving is noise
_MOST_TILES = 3  # choices of tiles that are said; there may be many alike

Told = Callable[[int], None]
Done = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be explained.

    Attributes:
      fn: the function.
      args: arrays or shapes.
      arguments: the same, as text.
      chip: where.
      against: another function of the same arguments, to compare with.
      tries: changes to simulate, at most.
    """

    fn: Function
    args: Sequence[Any]
    arguments: tuple[str, ...]
    chip: Chip
    against: Function | None = None
    tries: int = 12


def explained(
    pool: WorkerPool, question: Question, *, planned: Told = lambda count: None, done: Done = lambda label: None
) -> Explanation:
    """Answers a question with the workers of a pool; see `explain`.

    Args:
      pool: workers that compile and simulate.
      question: what is asked.
      planned: called with the number of jobs that are about to begin.
      done: called when one has ended.
    """
    asked = _Asked(pool, question, planned, done)
    mine = asked.simulated(question.fn, asked.name, spans=_SPANS)
    looked = asked.studied(question.fn)
    other = asked.simulated(question.against, "against", spans=_SPANS) if question.against is not None else None
    run = mine.result().run
    assert run is not None
    now = looked.result()
    product = product_of(question.args, now)
    alternatives = _alternatives(asked, product, other)
    trying = Trying(
        pool=pool,
        fn=question.fn,
        args=question.args,
        chip=question.chip,
        tries=question.tries,
        planned=planned,
        done=done,
    )
    tried = trying.run(now, run.time_us) if question.tries > 0 else []
    return _put_together(question, asked.name, run, now, product, [each() for each in alternatives], tried)


def explain(
    fn: Callable[..., Any],
    *args: Any,
    chip: str | Chip = "v5e",
    against: Callable[..., Any] | None = None,
    tries: int = 12,
    time_limit_s: float = 300,
) -> Explanation:
    """Why `fn(*args)` takes the time it takes on a chip that is not there, and what would change it.

    Compiles and simulates the function, and then the function with other tile sizes (where it takes them as keyword
    arguments), another order of its grid, more VMEM, two buffers, both cores: each saving is the simulated time of the
    changed program. Beside it stands XLA's program of the same result, where the function is a product of two matrices,
    or `against`.

    Args:
      fn: any function that `jax.jit` takes. Bind what is static with `functools.partial`; numbers that are bound or
        have defaults and are sizes of blocks are tried with other values.
      args: arrays or `jax.ShapeDtypeStruct`s, or pytrees of them.
      chip: v4, v5e, v5p, v6e or v7x.
      against: another function of the same arguments.
      tries: changes to simulate, at most; 0: none.
      time_limit_s: seconds for one compilation.

    Returns:
      The explanation; `systolic.report.explanation_page` draws it.

    Raises:
      UnknownChipError: no such chip.
      CompilerRefusal: the compiler said no to the function as it is; `systolic.check` says what to mend.
      SimulationError: the program does something that is not understood.
    """
    import jax

    check_available()
    known = chip_named(chip) if isinstance(chip, str) else chip
    leaves = jax.tree.leaves(abstract_arguments(args))
    texts = tuple(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in leaves)
    question = Question(fn=fn, args=args, arguments=texts, chip=known, against=against, tries=tries)
    with WorkerPool(max_workers=2, time_limit_s=time_limit_s) as pool:
        return explained(pool, question)


class _Asked:
    """A question with what answers it."""

    def __init__(self, pool: WorkerPool, question: Question, planned: Told, done: Done) -> None:
        self._pool, self._question, self._planned, self._done = pool, question, planned, done
        self.name = function_name(question.fn)

    def simulated(self, fn: Function, label: str, *, spans: int = 0) -> Future[Measurement]:
        """Compiles and simulates another function of the same arguments."""
        self._planned(1)
        question = self._question
        text = f"{label} for {question.chip.name}"
        job = submit_simulation(self._pool, fn, question.args, question.chip, label=text, spans=spans)
        job.add_done_callback(lambda _: self._done(label))
        return job

    def studied(self, fn: Function) -> Future[Study]:
        """What the traced program says."""
        self._planned(1)
        args = self._question.args
        shapes, values = abstract_arguments(args), argument_values(args)
        label = f"reading {self.name}"
        job = self._pool.submit(study, fn, shapes, values, self._question.chip, tracing_settings(), label=label)
        job.add_done_callback(lambda _: self._done(label))
        return job


def _alternatives(
    asked: _Asked, product: Product | None, other: Future[Measurement] | None
) -> list[Callable[[], Program]]:
    """Programs of the same result; each is waited for when it is called."""
    jobs: list[tuple[str, ProgramRole, Future[Measurement]]] = []
    if product is not None:
        jobs.append(("XLA", "xla", asked.simulated(product.by_xla, "XLA", spans=_SPANS)))
        jobs.append(("systolic.matmul", "other", asked.simulated(product.by_systolic, "systolic.matmul")))
    if other is not None:
        jobs.append(("the function compared with", "other", other))
    flops = product.flops if product is not None else 0.0
    return [lambda each=each: _program(*each, flops=flops) for each in jobs]


def _program(label: str, role: ProgramRole, job: Future[Measurement], *, flops: float) -> Program:
    try:
        run = job.result().run
    except (CompilerError, SimulationError, ValueError) as error:
        return Program(label=label, role=role, time_us=None, reason=str(error).splitlines()[0], flops=flops)
    assert run is not None
    return Program(label=label, role=role, time_us=run.time_us, flops=flops, hbm_bytes=_moved(run), run=run)


def _moved(run: SimulatedRun) -> int:
    return run.hbm_read_bytes + run.hbm_written_bytes


def _put_together(
    question: Question,
    name: str,
    run: SimulatedRun,
    now: Study,
    product: Product | None,
    alternatives: list[Program],
    tried: list[Tried],
) -> Explanation:
    flops = product.flops if product is not None else now.flops or 0.0
    this = Program(label="this kernel", role="this", time_us=run.time_us, flops=flops, hbm_bytes=_moved(run), run=run)
    changes = [
        Program(
            label=each.candidate.title,
            role="change",
            time_us=each.time_us,
            reason=each.reason,
            flops=flops,
            hbm_bytes=each.hbm_bytes,
        )
        for each in tried
    ]
    savings = (*_of_changes(tried, run.time_us), *_around(run, now), *_replaced(alternatives, run.time_us))
    limit_bytes = max((call.vmem_limit_bytes for call in now.calls), default=question.chip.scoped_vmem_bytes)
    return Explanation(
        function=name,
        arguments=question.arguments,
        chip=question.chip.name,
        chip_title=question.chip.title,
        versions=versions(),
        verdict=_verdict(run, now, savings),
        programs=(this, *alternatives, *changes),
        roofline=roofline(question.chip, now.dtype),
        windows=windows(run),
        traffic=now.traffic,
        vmem=vmem_map(run, now.traffic, limit_bytes, question.chip),
        regions=regions(run),
        lines=now.lines,
        savings=savings,
        notes=_notes(run, now, product, question),
    )


def _of_changes(tried: Sequence[Tried], time_us: float) -> list[Saving]:
    """What changes of the function's own parameters save, by simulating each, the most first."""
    found: list[Saving] = []
    tiles = 0
    for each in tried:
        if each.time_us is None or each.time_us > time_us * (1 - _WORTH_SAYING):
            continue
        tiles += bool(each.candidate.sizes)
        if each.candidate.sizes and tiles > _MOST_TILES:
            continue
        found.append(
            Saving(
                title=each.candidate.title,
                why=each.candidate.why,
                change=each.candidate.change,
                time_us=each.time_us,
                saving=1 - each.time_us / time_us,
                provenance="simulated",
                where=each.candidate.where,
            )
        )
    return found


def _around(run: SimulatedRun, now: Study) -> list[Saving]:
    """What XLA's own operations around the kernels take, such as a transposition in front of one."""
    core, kernel = run.later_core, main_op(run)
    if kernel is None or not now.calls:
        return []
    around = core.cycles - sum(op.cycles for op in core.ops if _is_kernel(op.scope))
    if not any(_is_kernel(op.scope) for op in core.ops) or around <= _WORTH_SAYING * 4 * core.cycles:
        return []
    reasons = [found for found in now.findings if found.rule.endswith("-operand")]
    others = ", ".join(op.name for op in sorted(core.ops, key=lambda op: -op.cycles) if not _is_kernel(op.scope))
    time_us = (core.cycles - around) / run.clock_hz * 1e6
    return [
        Saving(
            title="nothing but the kernel",
            why="; ".join(found.value for found in reasons) or f"XLA's own operations around it: {others or 'copies'}",
            change=reasons[0].fix if reasons else "give the kernel its operands as they lie in memory",
            time_us=time_us,
            saving=around / core.cycles,
            provenance="simulated",
            where=reasons[0].where if reasons else "",
        )
    ]


def _is_kernel(scope: str) -> bool:
    return "pallas_call" in scope


def _replaced(alternatives: Sequence[Program], time_us: float) -> list[Saving]:
    found = []
    for each in sorted(alternatives, key=lambda each: float("inf") if each.time_us is None else each.time_us):
        if each.time_us is None or each.time_us > time_us * (1 - _WORTH_SAYING):
            continue
        words = {"XLA": "jnp.matmul(lhs, rhs)", "systolic.matmul": "systolic.matmul(lhs, rhs)"}
        found.append(
            Saving(
                title=f"{each.label} in its place",
                why="it computes the same from the same arguments",
                change=words.get(each.label, each.label),
                time_us=each.time_us,
                saving=1 - each.time_us / time_us,
                provenance="simulated",
            )
        )
    return found


def _verdict(run: SimulatedRun, now: Study, savings: Sequence[Saving]) -> str:
    best = savings[0] if savings else None
    advice = (
        f"{best.title} would save {best.saving:.0%}"
        if best is not None and best.saving is not None
        else "nothing that was tried saves more than half a per cent"
    )
    unit = run.matrix_busy_share
    share = f"{unit:.0%} of the matrix unit" if unit else f"{run.copy_busy_share:.0%} of HBM's bandwidth"
    limit = limit_of(run, now.lines, now.traffic).words
    return f"simulated {run.time_us:,.1f} µs on {run.chip}: {share}; {limit}; {advice}"


def _notes(run: SimulatedRun, now: Study, product: Product | None, question: Question) -> tuple[str, ...]:
    notes = [
        f"{found.grade}: {found.rule}: {found.value} ({found.fix})" for found in now.findings if found.grade != "note"
    ]
    if product is not None:
        notes.append(f"XLA's program is that of {product.words}, which the shapes and the number of operations suggest")
    elif question.against is None and now.calls:
        notes.append("XLA's program of the same result is not known: give it as --against FILE.py:OTHER")
    if now.calls and not now.parameters:
        notes.append("no tile sizes to try: the function has no keyword argument that is the size of a block")
    if run.prefetch_cycles:
        notes.append(f"a first call takes {run.prefetch_us:,.1f} µs longer: an argument is brought into VMEM ahead")
    if now.flops is None and product is None:
        notes.append("operations are not known: a product runs as often as values say")
    return (*notes, *run.assumptions)
