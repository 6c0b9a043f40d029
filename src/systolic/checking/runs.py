"""Run a function under every condition, and judge its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from systolic.analysis import KernelCall
from systolic.checking.comparing import Reference, ReferenceFunction
from systolic.checking.ends import ends, unread_ends
from systolic.checking.exception_findings import exception_finding, run_failure, scratch_buffers
from systolic.checking.finding import Finding, Grade
from systolic.checking.inputs import HARDER, Data, Flat, NoInputError, is_index, made_up
from systolic.checking.interpreting import Conditions, Interpreted, Interpreter, words
from systolic.checking.judging import Judge
from systolic.checking.run_findings import run_findings
from systolic.checking.scaling import ScaledArguments
from systolic.checking.unreferenced import HarderResults
from systolic.checking.waiting import TooSlowError
from systolic.checking.watching import FIRST_BUFFER
from systolic.chips import Chip
from systolic.compat.jaxprs import equations
from systolic.compiler import at_stage
from systolic.support.bugs import raise_own

_MAX_RUN_SECONDS = 20.0  # longest estimate of one run

# Longest estimate of all runs together. It is counted, not measured: the runs, and thus the findings, must not depend
# on how fast or busy the machine is.
_BUDGET_S = 45.0
_TIME_LIMIT_S = 300.0  # for one run that does not end


_NOTHING_SAID = "its results are not known"


_SMALLER = "check it with smaller arguments, or smaller tiles"


@dataclass(slots=True, kw_only=True)
class Runs:
    """The runs of one function so far."""

    flat: Flat
    chip: Chip
    mesh: Mapping[str, int] | None
    scaled: ScaledArguments
    seeds: tuple[int, ...]
    judge: Judge = field(init=False)
    findings: list[Finding] = field(default_factory=list)
    ran: bool = False
    data: list[Data] = field(default_factory=list)
    harder: list[HarderResults] = field(default_factory=list)
    done: int = 0
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.judge = Judge(self.scaled.calls)

    def all(self, reference: Flat | None) -> None:
        """Run the function under all conditions, and compare the results."""
        if self.scaled.seconds > _MAX_RUN_SECONDS:
            seconds = f"{self.scaled.seconds:,.0f} s"
            value = f"it was not run: at the smallest sizes that it accepts, one run would take about {seconds}"
            self._note(value, _NOTHING_SAID, _SMALLER, "warning")
            return
        try:
            with at_stage("interpreting", self.scaled.calls[0].where if len(self.scaled.calls) == 1 else ""):
                self._run(reference)
        except NoInputError as error:
            self._note(f"it was not run: {error}", "a run needs values", "give a value for it", "warning")

    def _run(self, reference: Flat | None) -> None:
        leaves, values = self.scaled.leaves, self.scaled.values
        prefetches = any(call.of("prefetch") for call in self.scaled.calls)
        inputs = made_up(leaves, values, self.seeds[0], indices=prefetches)
        missing = [value is None and is_index(leaf) for leaf, value in zip(leaves, values, strict=True)]
        if prefetches and any(missing):
            self.judge.assumed = True
            self._note(
                "integers that a kernel prefetches were assumed to be zero",
                "only their shape is known, and they may choose its blocks",
                "give the values: --arg s32[4]=0,3,3,9, or an array in place of a shape",
            )
        carried = self._carried() if reference is None else ()
        outputs = len(self.scaled.calls[0].of("output")) if carried else 0
        interpreter = Interpreter(self.flat, self.chip, self.mesh, outputs=outputs)
        conditions = self._affordable(list(self._conditions(carried)))
        results: list[tuple[Conditions, Interpreted]] = []
        for condition in conditions:
            result = self._interpreted(interpreter, inputs, condition)
            if result is None:
                return
            results.append((condition, result))
        self.ran = True
        self.data.append("normal")
        self.findings += run_findings(self.scaled.calls, results)
        wide_reference = ReferenceFunction(reference) if reference is not None else None
        self.findings += self.judge.of_values(inputs, results, self._wanted(wide_reference, inputs))
        made = all(value is not None for value in values)
        if not made and not any(finding.grade == "error" for finding in self.findings):
            self._harder(interpreter, conditions, wide_reference, prefetches)
        if reference is None and self.judge.calls and not any(finding.grade == "error" for finding in self.findings):
            self.findings += self.judge.unreferenced.findings(inputs, results[0][1].outputs, self.harder)
            if not any(array.dtype.kind in "iu" for array in inputs) and not self.mesh:
                self._ends(interpreter, inputs, results[0])
        self.findings += self.judge.of_precision()
        if self.left_out:
            self._note(
                f"{', and '.join(self.left_out)} were left out: a run is estimated at {self.scaled.seconds:.1f} s, and "
                f"all runs may take {_BUDGET_S:.0f} s by that estimate",
                "a fault that only these would show is not found",
                _SMALLER,
            )

    def _harder(
        self,
        interpreter: Interpreter,
        conditions: Sequence[Conditions],
        reference: ReferenceFunction | None,
        prefetches: bool,
    ) -> None:
        """Run the function on inputs that are harder than normal ones, until something is wrong."""
        for data, kind in HARDER.items():
            if not self._is_within_budget(runs=2):
                remaining = list(HARDER.values())[list(HARDER).index(data) :]
                self.left_out.append(f"inputs of {len(remaining)} kinds ({'; '.join(remaining)})")
                return
            inputs = made_up(self.scaled.leaves, self.scaled.values, self.seeds[0], indices=prefetches, data=data)
            results: list[tuple[Conditions, Interpreted]] = []
            for condition in (conditions[0], conditions[-1]):  # with NaN in memory, and with large numbers
                result = self._interpreted(interpreter, inputs, condition)
                if result is None:
                    return
                results.append((condition, result))
                if not result.has_nan:
                    break
            self.data.append(data)
            self.harder.append(HarderResults(data=data, kind=kind, inputs=inputs, outputs=results[0][1].outputs))
            expected = self._wanted(reference, inputs)
            reported = {(finding.rule, finding.grade) for finding in self.findings}
            new_findings = list(self.judge.of_values(inputs, results, expected, data=kind))
            self.findings += [finding for finding in new_findings if (finding.rule, finding.grade) not in reported]
            if any(finding.grade == "error" for finding in new_findings):
                return

    def _ends(
        self, interpreter: Interpreter, inputs: Sequence[np.ndarray], first: tuple[Conditions, Interpreted]
    ) -> None:
        """Look for ends of the inputs that change no result, while their neighbors do."""
        condition, base = first
        count = len(ends(inputs))
        if not self._is_within_budget(count):
            self.left_out.append(f"{count} runs with other numbers at the ends of the inputs")
            return

        def run(arguments: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
            result = self._interpreted(interpreter, arguments, condition)
            return result.outputs if result is not None else None

        self.findings += map(self.judge.unreferenced.of_unread_end, unread_ends(run, inputs, base.outputs))

    def _is_within_budget(self, runs: int) -> bool:
        """True if this number of further runs fits the budget, by the estimate of `run_seconds`."""
        return (self.done + runs) * self.scaled.seconds <= _BUDGET_S

    def _affordable(self, conditions: list[Conditions]) -> list[Conditions]:
        """Keep as many conditions as fit the budget: the first and the last show more than those between them."""
        count = max(2, int(_BUDGET_S / self.scaled.seconds)) if self.scaled.seconds else len(conditions)
        if count >= len(conditions):
            return conditions
        self.left_out.append(f"{len(conditions) - count} of {len(conditions)} orders of copies and steps")
        return [*conditions[: count - 1], conditions[-1]]

    def _conditions(self, carried: tuple[int, ...]) -> Iterator[Conditions]:
        parallel = any("parallel" in call.semantics for call in self.scaled.calls)
        cores = self.chip.cores_per_device if parallel else 1
        for at, seed in enumerate(self.seeds):
            copies, memory = "eager" if at % 2 else "on_wait", "zero" if at % 3 == 2 else "nan"
            yield Conditions(order=seed, copies=copies, memory=memory, cores=cores)
        if cores == 1 and any(map(_reads_what_it_writes, self.scaled.calls)):
            yield Conditions(order=self.seeds[0], late=True)
        if cores == 1 and carried:
            yield Conditions(order=self.seeds[0], spoiled=carried)
        yield Conditions(order=self.seeds[0], memory="large", cores=cores)

    def _carried(self) -> tuple[int, ...]:
        """Return buffers that one block of the output may leave to the next; none if copies may fill them early."""
        if len(self.scaled.calls) != 1 or self.mesh:
            return ()
        call = self.scaled.calls[0]
        copies = any(equation.primitive.name == "dma_start" for equation in equations(call.body))
        if copies or not all(operand.is_cut for operand in call.of("output")):
            return ()
        return tuple(FIRST_BUFFER + number for number in scratch_buffers(call))

    def _interpreted(
        self, interpreter: Interpreter, inputs: Sequence[np.ndarray], conditions: Conditions
    ) -> Interpreted | None:
        self.done += 1
        try:
            result = interpreter.run(inputs, conditions, time_limit_s=_TIME_LIMIT_S)
        except TooSlowError as error:
            self._note(f"a run {error}".replace("it was", "was"), _NOTHING_SAID, _SMALLER, "warning")
            return None
        except Exception as error:  # noqa: BLE001 -- any exception of the kernel is the result
            finding = run_failure(error, self.scaled.calls, f"copies {words(conditions)}", interpreter.watch)
            if (finding.rule, finding.grade) == ("run", "error"):  # the interpreter cannot run the kernel
                raise_own(error)
            self.findings.append(finding)
            return None
        return result

    def _wanted(self, reference: ReferenceFunction | None, inputs: Sequence[np.ndarray]) -> Reference | None:
        if reference is None:
            return None
        try:
            return reference.evaluated(inputs, self.seeds[0])
        except Exception as error:  # noqa: BLE001 -- the user's function
            raise_own(error)
            finding = exception_finding(
                error,
                "reference",
                "the reference raises ",
                limit="results were not compared; the reference is called with float64 in place of floats",
                fix="write it for any dtype: without .astype(bfloat16) and the like",
            )
            self.findings.append(finding)
            return None

    def _note(self, value: str, limit: str, fix: str, grade: Grade = "note") -> None:
        self.findings.append(Finding(rule="run", grade=grade, value=value, limit=limit, fix=fix))


def _reads_what_it_writes(call: KernelCall) -> bool:
    """True if an output takes the place of an input that a pipeline reads ahead, block by block."""
    inputs, outputs = call.of("input"), call.of("output")
    return any(
        inputs[source].is_cut and outputs[out].is_cut and inputs[source].buffers != 1 for source, out in call.aliases
    )
