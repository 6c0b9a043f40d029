"""A layer of experts, as `plan_moe` and the suite of such layers describe it."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.ops.op import Kept
from systolic.spec import OneDtype, SpecError, dtype_bytes
from systolic.spec.matmul import check_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec(OneDtype):
    """`Σ weight · (silu(x @ gate[e]) · (x @ up[e])) @ down[e]` over the `top_k` experts e of each token.

    Attributes:
      m: tokens, of all devices.
      k: features of a token.
      n: features between the two products of an expert.
      experts: of all devices.
      top_k: experts of a token.
      devices: over which experts and tokens are cut.

    Raises:
      SpecError: a size below one, more experts of a token than there are, or devices that do not divide experts and
        tokens.
    """

    m: int
    k: int
    n: int
    experts: int
    top_k: int
    dtype: str
    devices: int = 1

    def __post_init__(self) -> None:
        check_sizes(self, "m", "k", "n", "experts", "top_k", "devices")
        dtype_bytes(self.dtype)
        if self.top_k > self.experts:
            raise SpecError(f"top_k={self.top_k} of {self.experts} experts; use at most as many as there are")
        if self.experts % self.devices or self.m % self.devices:
            raise SpecError(
                f"{self.experts} experts and {self.m} tokens over {self.devices} devices; use a divisor of both"
            )

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products of experts."""
        return 3 * 2 * self.m * self.top_k * self.k * self.n

    @property
    def least_hbm_bytes(self) -> int:
        """Bytes of all experts' weights, of tokens, of the router's logits and of the result, once."""
        elements = 3 * self.experts * self.k * self.n + 2 * self.m * self.k
        return elements * dtype_bytes(self.dtype) + self.m * self.experts * dtype_bytes("float32")


class MoeLayers(Kept):
    """The kind of spec, by its name in files."""

    name = "moe"
    spec_type = MoeSpec

    def words(self, spec: MoeSpec) -> tuple[str, str, str]:
        over = f" over {spec.devices} devices" if spec.devices > 1 else ""
        sizes = f"{spec.m:,} tokens × {spec.k:,}, {spec.top_k} of {spec.experts} experts × {spec.n:,}{over}"
        return sizes, spec.dtype, "gated"
