"""Categories of HLO operations in the words of XProf's `hlo_category`, and the FLOPs of their matrix products."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_CALLED = re.compile(r"\bcalls=%([\w.\-]+)", re.ASCII)
_FUSION_KIND = re.compile(r"\bkind=k(\w+)", re.ASCII)
_LABELS = re.compile(r"\bdim_labels=\w+_(\w+)->\w+", re.ASCII)
_FORMATTING = frozenset({"copy", "transpose", "reshape", "dynamic-reshape"})
_ELEMENTWISE_OPCODES = (
    "abs add and atan2 bitcast-convert cbrt ceil clamp compare complex convert cosine count-leading-zeros divide erf "
    "exponential exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum multiply negate "
    "not or popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select shift-left "
    "shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert subtract tan tanh xor"
)
_ELEMENTWISE = frozenset(_ELEMENTWISE_OPCODES.split())


def operation_category(opcode: str, attributes: str = "", *, multiplies: bool = False) -> str:
    """Return the category of an HLO operation, such as "loop fusion" or "data formatting".

    Args:
      opcode: of the operation.
      attributes: the text after its operands, where a fusion has its kind.
      multiplies: a fusion with a convolution inside, as which XLA:TPU writes matrix products.
    """
    if opcode == "fusion":
        kind = _FUSION_KIND.search(attributes)
        return "convolution fusion" if multiplies else f"{kind[1].lower()} fusion" if kind else "fusion"
    if opcode in _FORMATTING:
        return "data formatting"
    return "non-fusion elementwise" if opcode in _ELEMENTWISE else opcode


@dataclass(slots=True)
class OperationKinds:
    """Opcodes of a module's instructions, and what its fusions call; `enter` and `add` take the text in its order."""

    _instructions: dict[str, tuple[str, str]] = field(default_factory=dict)  # opcode, and a fusion's attributes
    _labels: dict[str, str] = field(default_factory=dict)  # a convolution's dimensions of its kernel, "io"
    _called: dict[str, str] = field(default_factory=dict)  # computations, by fusion
    _convolutions: dict[str, list[str]] = field(default_factory=dict)  # by computation
    _fusions: dict[str, list[str]] = field(default_factory=dict)  # by computation
    _computation: str = ""

    def enter(self, computation: str) -> None:
        """Begin a computation."""
        self._computation = computation

    def add(self, name: str, opcode: str, rest: str) -> None:
        """Add an instruction; `rest` is the text from its operands on."""
        self._instructions[name] = (opcode, rest if opcode == "fusion" else "")
        if opcode == "convolution":
            # Some positions of a window may be padding, whose products XLA does not count.
            labels = _LABELS.search(rest) if "window=" not in rest else None
            self._labels[name] = labels[1] if labels is not None else ""
            self._convolutions.setdefault(self._computation, []).append(name)
        elif opcode == "fusion" and (called := _CALLED.search(rest)) is not None:
            self._called[name] = called[1]
            self._fusions.setdefault(self._computation, []).append(name)

    def category(self, name: str) -> str:
        """Return the category of an instruction; "" if the module has none of that name."""
        if name not in self._instructions:
            return ""
        opcode, attributes = self._instructions[name]
        return operation_category(opcode, attributes, multiplies=bool(self._products(name)))

    def flops(
        self, name: str, sizes: Callable[[str], Sequence[int]], operands: Callable[[str], Sequence[str]]
    ) -> int | None:
        """Return the FLOPs of an operation's products, a multiplication and an addition counting as two.

        None: it has no product, or a convolution with a window.

        Args:
          sizes: of the array that an instruction makes; () if it is not known.
          operands: names of an instruction's operands.
        """
        total = 0
        for product in self._products(name):
            made, factors = sizes(product), operands(product)
            kernel = dict(zip(self._labels[product], sizes(factors[-1]) if factors else (), strict=False))
            if not made or "i" not in kernel:
                return None
            total += 2 * math.prod(made) * kernel["i"]
        return total or None

    def _products(self, name: str) -> list[str]:
        """Return the convolutions of an operation, also in fusions within it."""
        if name in self._labels:
            return [name]
        products, seen, fusions = [], set[str](), [name]
        while fusions:
            computation = self._called.get(fusions.pop(), "")
            if computation and computation not in seen:
                seen.add(computation)
                products += self._convolutions.get(computation, [])
                fusions += self._fusions.get(computation, [])
        return products
