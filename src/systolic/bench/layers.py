"""MLPs as a network has them, several in a row, so that XLA's prefetch of the next weights counts as it does there.

h = silu(x @ w_gate) · (x @ w_up)          x + h @ w_down
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.spec import OneDtype, dtype_bytes

Which = Literal["mlp", "gated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersSpec(OneDtype):
    """So many MLPs in a row, [m, k] → [m, n] → [m, k]; or only their first half, where `which` is gated.

    With `backward` the gradients of x and of all weights are results too.
    """

    m: int
    k: int
    n: int
    dtype: str
    layers: int = 2
    backward: bool = False
    which: Which = "mlp"

    @property
    def weights(self) -> tuple[tuple[int, int], ...]:
        """Shapes of all weights, in the order in which they are multiplied."""
        down = ((self.n, self.k),) if self.which == "mlp" else ()
        return ((self.k, self.n), (self.k, self.n), *down) * self.layers

    @property
    def result(self) -> tuple[int, int]:
        """The shape of what comes out."""
        return self.m, self.k if self.which == "mlp" else self.n

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products; the backward pass has two more of each."""
        return (3 if self.backward else 1) * len(self.weights) * 2 * self.m * self.k * self.n

    @property
    def least_hbm_bytes(self) -> int:
        """Weights read once, x read and the result written; in the backward pass weights again, and the gradients."""
        around = self.m * self.k + self.result[0] * self.result[1]
        weights = len(self.weights) * self.k * self.n
        return dtype_bytes(self.dtype) * (3 * weights + 2 * around if self.backward else weights + around)
