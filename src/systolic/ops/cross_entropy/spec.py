"""A softmax loss of a linear layer, forward or backward, as numbers and names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from systolic.spec.dtypes import SpecError, dtype_bytes
from systolic.spec.matmul import PrecisionName, check_precision, check_sizes
from systolic.spec.one_dtype import OneDtype
from systolic.support.choices import unknown_name

LossKind = Literal["forward", "gradients"]
_PRODUCTS: dict[str, int] = {"forward": 1, "gradients": 3}  # the logits; the logits again, and both gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropySpec(OneDtype):
    """Softmax statistics of the logits `x[m, k] @ w[k, n]`, or the gradients of x and w.

    - forward: for each row the log-sum-exp, the label's logit and, with `total`, the sum of all logits.
    - gradients: of x and w, from logits that are computed again, or that the forward kernel wrote.

    Attributes:
      m, k, n: tokens, features, vocabulary.
      soft_cap: True if logits are `cap · tanh(logits / cap)`.
      total: True if the sum of a row's logits is wanted, as label smoothing needs it.
      keep_logits: True if forward writes the logits in this dtype, and gradients read them.

    Raises:
      SpecError: a size is below one or above 2³¹ − 1; a dtype, the kind or the precision is unknown.
    """

    m: int
    k: int
    n: int
    dtype: str
    kind: LossKind = "forward"
    precision: PrecisionName = "default"
    soft_cap: bool = False
    total: bool = False
    keep_logits: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "m", "k", "n")
        if self.kind not in _PRODUCTS:
            raise SpecError(unknown_name("kind=", self.kind, _PRODUCTS))
        dtype_bytes(self.dtype)
        check_precision(self.precision)

    @property
    def products(self) -> int:
        """Products of the sizes m, k and n in the kernel."""
        return 2 if self.kind == "gradients" and self.keep_logits else _PRODUCTS[self.kind]

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        return 2 * self.m * self.k * self.n * self.products

    @property
    def logits_bytes(self) -> int:
        """Bytes of the logits that cross HBM."""
        return self.m * self.n * dtype_bytes(self.dtype) if self.keep_logits else 0

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of x, w, labels and logits that are kept once, and of the results."""
        item = dtype_bytes(self.dtype)
        read = (self.m * self.k + self.k * self.n) * item + 4 * self.m + self.logits_bytes
        if self.kind == "forward":
            return read + 4 * self.m * (3 if self.total else 2)
        return read + 4 * self.m * (4 if self.total else 3) + (self.m * self.k + self.k * self.n) * item
