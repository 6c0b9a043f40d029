"""A kernel for SparseCores: each of 32 subcores of a v6e increases one row.

    systolic check examples/subcores.py:increased --arg "s32[32,128]" --chip v6e
    systolic check examples/subcores.py:increased --arg "s32[32,128]" --chip v6e --param same_row=True

Nothing here knows of `systolic`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

LANES = 8  # of a vector register of a subcore of a v6e
# Operations on lanes are compiled as they are: the compiler does not infer their layouts.
PARAMS = pltpu.CompilerParams(needs_layout_passes=False)


def increased(x: jax.Array, *, same_row: bool = False) -> jax.Array:
    """Return x + 1; with `same_row` all subcores write row 0, which is a race."""
    subcores = plsc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="subcore")

    def body(x_hbm: Any, out_hbm: Any, row_vmem: Any) -> None:
        row = jax.lax.axis_index("core") * subcores.num_subcores + jax.lax.axis_index("subcore")
        pltpu.sync_copy(x_hbm.at[row], row_vmem)

        @pl.loop(0, x.shape[1], step=LANES)
        def _increase(first: jax.Array) -> None:
            row_vmem[pl.ds(first, LANES)] += 1

        pltpu.sync_copy(row_vmem, out_hbm.at[0 if same_row else row])

    call: Any = pl.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        mesh=subcores,
        scratch_types=[pltpu.VMEM((x.shape[1],), jnp.int32)],
        compiler_params=PARAMS,
    )
    return call(x)


def increased_reference(x: jax.Array) -> jax.Array:
    """Compute `increased` without a kernel."""
    return x + 1
