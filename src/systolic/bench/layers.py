"""MLPs as a network has them, several in a row, so that XLA's prefetch of the next weights counts as it does there.

h = silu(x @ w_gate) · (x @ w_up)          x + h @ w_down

With experts each row has the weights of one of them, as in a block of experts after its router: rows are sorted by
expert already, in both programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.bench.moe import sizes_of
from systolic.spec import OneDtype, dtype_bytes

Which = Literal["mlp", "gated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersSpec(OneDtype):
    """Several MLPs in a row, [m, k] → [m, n] → [m, k]; or only their first half, where `which` is gated.

    With `backward` the gradients of x and of all weights are results too. With `experts` there is a copy of each weight
    for each of them, and skewed numbers of rows.
    """

    m: int
    k: int
    n: int
    dtype: str
    layers: int = 2
    backward: bool = False
    which: Which = "mlp"
    experts: int = 0

    @property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of all weights, in the order in which they are multiplied."""
        leading = (self.experts,) if self.experts else ()
        down = ((*leading, self.n, self.k),) if self.which == "mlp" else ()
        return ((*leading, self.k, self.n), (*leading, self.k, self.n), *down) * self.layers

    @property
    def sizes(self) -> tuple[int, ...]:
        return sizes_of(self.m, self.experts, "skewed")

    @property
    def result(self) -> tuple[int, int]:
        return self.m, self.k if self.which == "mlp" else self.n

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products; the backward pass has two more of each."""
        return (3 if self.backward else 1) * len(self.weights) * 2 * self.m * self.k * self.n

    @property
    def least_hbm_bytes(self) -> int:
        """Weights read once, x read and the result written; in the backward pass weights again, and the gradients.

        Weights of experts that have rows are read, the gradients of all are written.
        """
        around = self.m * self.k + self.result[0] * self.result[1]
        weights, used = len(self.weights) * self.k * self.n, sum(map(bool, self.sizes)) if self.experts else 1
        read, written = weights * used, weights * max(self.experts, 1)
        return dtype_bytes(self.dtype) * (2 * read + written + 2 * around if self.backward else read + around)
