"""Findings from results without a reference: known functions, and ends of inputs that no result depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from systolic.analysis import KernelCall
from systolic.checking.comparing import place
from systolic.checking.ends import UnreadEnd
from systolic.checking.exception_findings import about
from systolic.checking.finding import Finding
from systolic.checking.guessing import Guess, Guesser
from systolic.checking.inputs import Data

# Data of the size of normal numbers. Larger numbers would accuse a function that clips its input on purpose.
_COMPARED_DATA: tuple[Data, ...] = ("negative", "repeated")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarderResults:
    """The results for one kind of harder inputs."""

    data: Data
    kind: str  # of the inputs, in words
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreferenced:
    """Compares results with the results of known functions that fit the shapes.

    Attributes:
      calls: the Pallas calls that were run.
      assumed: True if values were drawn that a kernel's blocks may depend on: its results mean little then.
    """

    calls: Sequence[KernelCall]
    assumed: bool
    guesser: Guesser

    def findings(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], harder: Sequence[HarderResults]
    ) -> Iterator[Finding]:
        """Yield findings by a known function, or the note that nothing was compared.

        Args:
          inputs, outputs: flat, of normal numbers.
          harder: results for other inputs.
        """
        guess = self.guesser.guess(inputs, outputs)
        if guess is not None and guess.function.fault and not guess.wrong.any():
            yield about(
                self.calls,
                "wrong-result",
                "note" if self.assumed else "warning",
                value=f"all results are those of {guess.text}, {guess.function.fault}",
                limit="that is seldom meant",
                fix="mend the mask or the count, or pass a reference that has the same",
            )
            return
        yield self._compared_with(guess)
        if guess is None or guess.wrong.any() or guess.function.is_masked:
            return
        if guess.coarse.any() and not self.assumed:
            yield self._coarse(guess)
        different = next((finding for results in harder for finding in self._of_harder(guess, results)), None)
        if different is not None:
            yield different

    def _compared_with(self, guess: Guess | None) -> Finding:
        partly = guess is not None and guess.wrong.any()
        doubtful = guess is not None and (guess.function.is_masked or bool(guess.function.fault))
        value = "the results were not compared with a reference"
        if guess is not None and partly and not doubtful:
            many = "most" if guess.wrong.mean() < 1 / 2 else "some"
            value = f"{many} results are those of {guess.text}, and {place(guess.wrong)} are not"
        elif guess is not None and not partly:
            value = f"the results were compared with no reference; they are those of {guess.text}"
        return about(
            self.calls,
            "reference",
            "warning" if partly and not doubtful and not self.assumed else "note",
            value=value,
            limit="results that are wrong in the same way under all conditions go unnoticed",
            fix="pass a function of the same arguments that is right: --reference FILE.py:REF",
        )

    def _coarse(self, guess: Guess) -> Finding:
        return about(
            self.calls,
            "precision",
            "warning",
            value=f"the results are those of {guess.text}, but {place(guess.coarse)} are less exact",
            limit="as if sums or intermediates were rounded to bfloat16 on the way",
            fix="keep sums and their parts in float32, and round once at the end",
        )

    def _of_harder(self, guess: Guess, results: HarderResults) -> Iterator[Finding]:
        if results.data not in _COMPARED_DATA or [array.shape for array in results.outputs] != [guess.wrong.shape]:
            return
        other, expected = self.guesser.compared(guess.function, results.inputs, results.outputs[0])
        wrong = other.wrong & np.isfinite(expected.values[0])
        if expected.steady[0] and wrong.any():
            yield about(
                self.calls,
                "wrong-result",
                "note" if self.assumed else "warning",
                value=f"of normal numbers all results are those of {guess.text}; of {results.kind}, {place(wrong)} are "
                "not",
                limit="a constant takes part, such as zeros that fill up a block, or a mask depends on the data",
                fix="fill up with a neutral value (-inf under a maximum), or pass a reference that does the same",
            )

    def of_unread_end(self, end: UnreadEnd) -> Finding:
        """Report an end of an input that changes no result."""
        elements = (
            f"{'last' if end.is_last else 'first'} {'element' if end.elements == 1 else f'{end.elements} elements'}"
        )
        changed = (
            f"{'changes' if end.elements == 1 else 'change'} {f'{end.results:,}' if end.results else 'no'} results"
        )
        return about(
            self.calls,
            "dropped-tail",
            "note" if self.assumed else "warning",
            value=f"argument {end.argument}: the {elements} along dimension {end.axis} {changed}, and an element next "
            f"to them {end.usual:,}",
            limit="a mask or a loop that ends one too early leaves it out",
            fix="look at the comparison of the mask and the count of the loop; if this is intended, pass a reference",
        )
