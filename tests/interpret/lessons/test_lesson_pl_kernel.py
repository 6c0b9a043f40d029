"""The product of the lesson on `pl.kernel`, at small sizes, against float64, on one core and on two."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking.running import RunOutcome, run_checks
from systolic.chips import chip
from systolic.compat import tensorcore_mesh
from systolic.lessons.kernels.pl_kernel import matmul_kernel


def checked(fn, m: int, k: int, n: int, on: str = "v5e") -> RunOutcome:
    args = jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((k, n), jnp.bfloat16)
    return run_checks(fn, args, chip=chip(on), reference=lambda x, y: x @ y, seeds=(0,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("size", "chosen"),
    [
        ((16, 128, 128), {"bm": 16, "bk": 128, "bn": 128}),  # one step of each pipeline
        ((32, 384, 256), {"bm": 16, "bk": 128, "bn": 128}),
        ((32, 384, 256), {"bm": 16, "bk": 128, "bn": 128, "buffers": (3, 3)}),
        ((64, 256, 384), {"bm": 16, "bk": None, "bn": 128, "buffers": (2, 3)}),
        ((64, 256, 384), {"bm": 16, "bk": None, "bn": 128, "buffers": (2, 3), "lookahead": True}),
        ((64, 256, 256), {"bm": 16, "bk": 128, "bn": 128, "cores": 2}),
        ((16, 256, 256), {"bm": 16, "bk": 128, "bn": 128, "cores": 2}),  # rows cannot be halved, columns can
    ],
)
def test_product(size: tuple[int, int, int], chosen: dict) -> None:
    outcome = checked(functools.partial(matmul_kernel, **chosen), *size)
    assert [each for each in outcome.findings if each.grade != "note"] == []
    assert outcome.summary.error is not None
    assert outcome.summary.tolerance is not None
    assert outcome.summary.error <= outcome.summary.tolerance


@pytest.mark.exhaustive
def test_the_mesh_has_the_cores_of_the_device() -> None:
    outcome = checked(functools.partial(matmul_kernel, bm=16, bk=128, bn=128), 32, 256, 128, on="v5p")
    assert [each for each in outcome.findings if each.grade != "note"] == []


def test_cores_that_do_not_share_the_grid_race() -> None:
    def body(x_hbm, out_hbm):
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(doubled, grid=(2,), in_specs=[block], out_specs=[block])(x_hbm, out_hbm)

    def doubled(x_vmem, out_vmem):
        out_vmem[...] = 2 * x_vmem[...]

    def double(x):
        return pl.kernel(body, out_type=x, mesh=tensorcore_mesh("core", num_cores=2))(x)

    outcome = run_checks(double, [jax.ShapeDtypeStruct((16, 128), jnp.float32)], chip=chip("v5e"), seeds=(0,))
    assert "race" in {each.rule for each in outcome.findings}
