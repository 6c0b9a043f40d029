"""`systolic.matmul` under `jax_enable_x64` compiles to the very program that it compiles to without."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.chips import chip
from systolic.compiler import WorkerPool
from systolic.timing import submit_simulation

F32, BF16, INT8 = jnp.float32, jnp.bfloat16, jnp.int8
Shapes = tuple[tuple[int, ...], ...]


def leaky(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, 0.1 * x) * 2  # Python's numbers, which have 64 bits


def product(lhs: jax.Array, rhs: jax.Array, **keywords: Any) -> jax.Array:
    return systolic.matmul(lhs, rhs, **keywords)


def stack(lhs: jax.Array, rhs: jax.Array, bias: jax.Array, residual: jax.Array) -> jax.Array:
    return systolic.matmul(lhs, rhs, bias=bias, activation=leaky, residual=residual, out_scale=0.5, lhs_fn=jnp.tanh)


def slopes(lhs: jax.Array, rhs: jax.Array) -> Any:
    def loss(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return (systolic.matmul(lhs, rhs, activation="gelu").astype(F32) ** 2).sum()

    return jax.grad(loss, argnums=(0, 1))(lhs, rhs)


# Kernels: manual DMA (512³, 2048³, few rows), `emit_pipeline` (ragged on v5e and v7x), Pallas' own (v5p, a batch).
FORMS: dict[str, tuple[Callable[..., Any], Shapes, Any]] = {
    "512³": (product, ((512, 512), (512, 512)), BF16),
    "2048³": (product, ((2048, 2048), (2048, 2048)), BF16),
    "int8": (product, ((512, 1024), (1024, 512)), INT8),
    "float32 in three passes": (functools.partial(product, precision="high"), ((512, 512), (512, 512)), F32),
    "both transposed": (
        functools.partial(product, transpose_lhs=True, transpose_rhs=True), ((512, 768), (640, 512)), BF16),
    "few rows": (product, ((8, 4096), (4096, 4096)), BF16),
    "ragged": (product, ((1000, 999), (999, 1001)), BF16),
    "tiny": (product, ((3, 201), (201, 300)), BF16),
    "one column": (product, ((300, 512), (512, 1)), BF16),
    "batch": (product, ((3, 200, 300), (3, 300, 260)), BF16),
    "stack": (stack, ((512, 768), (768, 640), (640,), (512, 640)), BF16),
    "stack, ragged": (stack, ((200, 499), (499, 301), (301,), (200, 301)), F32),
    "gradient": (slopes, ((512, 384), (384, 512)), BF16),
}  # fmt: skip
CHIPS = ["v5e", "v5p", "v6e", "v7x"]
CASES = [
    *((form, CHIPS[number % 4]) for number, form in enumerate(FORMS)),
    *((form, name) for form in ("512³", "ragged") for name in CHIPS),
]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with pytest.MonkeyPatch.context() as patch, WorkerPool(max_workers=2) as pool:
        patch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        yield pool


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("form", "name"), list(dict.fromkeys(CASES)))
def test_the_program_is_that_without_x64(pool: WorkerPool, form: str, name: str) -> None:
    fn, shapes, dtype = FORMS[form]
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    plain = submit_simulation(pool, fn, arguments, chip(name), label=f"{form} on {name}")
    with jax.enable_x64(True):
        wide = submit_simulation(pool, fn, arguments, chip(name), label=f"{form} on {name} under x64")
    without, under = plain.result().run, wide.result().run
    assert without is not None
    assert under is not None
    assert (under.cycles, under.bundles) == (without.cycles, without.bundles)
