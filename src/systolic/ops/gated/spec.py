"""Two products of one kernel: the gated product of an MLP, and the products of its gradients."""

from __future__ import annotations

from dataclasses import dataclass

from systolic.spec.fused import Epilogue
from systolic.spec.matmul import MatmulSpec, Pairing


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedSpec(MatmulSpec):
    """Two products of `[m, k] @ [k, n]`, `batch` times, which share operands.

    - gated: `activation(lhs @ rhs) · (lhs @ up)`. With `epilogue.kept_sum` there are two more outputs for the gradient:
      the derivatives of the result with regard to lhs @ up and to lhs @ rhs.
    - added: `lhs₁ @ rhs + lhs₂ @ up`, where the function of lhs makes lhs₁ and lhs₂ of one block: the gradient of x.
    - apart: `lhs @ rhs₁` and `lhs @ rhs₂`, two outputs, where the function of rhs makes rhs₁ and rhs₂: the weights'
      gradients.

    With `side_by_side` rhs and up are one array, the columns of up after the columns of rhs; so are both outputs of
    apart.

    Raises:
      SpecError: as `MatmulSpec`.
    """

    # A plain product has these as properties, not as fields, so that its records did not change.
    pairing: Pairing = "gated"  # pyright: ignore[reportIncompatibleMethodOverride]
    side_by_side: bool = False  # pyright: ignore[reportIncompatibleMethodOverride]

    @classmethod
    def of(
        cls,
        m: int,
        k: int,
        n: int,
        dtype: str,
        dtype_out: str | None = None,
        *,
        activation: str = "silu",
        side_by_side: bool = False,
    ) -> GatedSpec:
        """Return the spec of the gated product; dtypes as in `MatmulSpec.of`."""
        plain = MatmulSpec.of(m, k, n, dtype, dtype_out)
        return cls(
            m=m,
            k=k,
            n=n,
            dtype_lhs=dtype,
            dtype_rhs=dtype,
            dtype_out=plain.dtype_out,
            epilogue=Epilogue(activation=activation),
            side_by_side=side_by_side,
        )
