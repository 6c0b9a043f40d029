"""Derivatives of `systolic.matmul` in forward mode and of any order, against those of the formula in plain JAX."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from matmul_reference import assert_same, normal
from quick_compilation import quick_flags

import systolic

F32, BF16 = jnp.float32, jnp.bfloat16
Fn = Callable[..., Any]


def fused(by: Any) -> Fn:
    def product(lhs: Any, rhs: Any, bias: Any, residual: Any, scale: Any, weight: Any) -> jax.Array:
        return systolic.matmul(
            lhs, rhs, bias=bias, activation="silu", residual=residual, out_scale=scale, lhs_fn=jnp.sin,
            rhs_fn=lambda rhs, weight: rhs * weight, rhs_args=(weight,), implementation=by,
        )  # fmt: skip

    return product


def fused_plain(lhs: Any, rhs: Any, bias: Any, residual: Any, scale: Any, weight: Any) -> jax.Array:
    return (jax.nn.silu(jnp.matmul(jnp.sin(lhs), rhs * weight, precision="highest") + bias) + residual) * scale


FUSED = normal(8, 16), normal(16, 24), normal(24), normal(8, 24), normal(1, 24), normal(16, 1)
TANGENTS = tuple(normal(*array.shape, seed=1) for array in FUSED)


def small(by: Any) -> Fn:
    return lambda lhs, rhs: systolic.matmul(lhs, rhs, activation="tanh", implementation=by)


def small_plain(lhs: Any, rhs: Any) -> jax.Array:
    return jnp.tanh(jnp.matmul(lhs, rhs, precision="highest"))


# Small enough that tanh stays away from ±1, where its derivatives cancel.
SMALL = normal(3, 5) / 3, normal(5, 4) / 3
BATCH = normal(2, 3, 5) / 3, normal(2, 5, 4) / 3
LAYERS = normal(3, 5, 5) / 3


def loss(fn: Fn) -> Fn:
    return lambda *arrays: (fn(*arrays) ** 2).sum()


def total(fn: Fn) -> Fn:
    return lambda *arrays: fn(*arrays).sum()


def again(fn: Fn) -> Fn:
    """A scalar function whose gradient is one order higher."""
    return lambda *arrays: (jax.grad(fn)(*arrays) ** 2).sum()


def along(fn: Fn) -> Fn:
    return lambda *arrays: jax.jvp(fn, arrays, SMALL)[1]


def layers(fn: Fn) -> Fn:
    return lambda x, weights: lax.scan(lambda x, weight: (fn(x, weight), None), x, weights)[0]


both = (0, 1)
# What is made of a function of two matrices.
TRANSFORMS: dict[str, Callable[[Fn], Any]] = {
    "jvp": lambda f: jax.jvp(f, SMALL, SMALL),
    "jvp of one": lambda f: jax.jvp(lambda rhs: f(SMALL[0], rhs), SMALL[1:], SMALL[1:]),
    "linearize": lambda f: jax.linearize(f, *SMALL)[1](*SMALL),
    "transpose of linearize": lambda f: jax.linear_transpose(jax.linearize(f, *SMALL)[1], *SMALL)(f(*SMALL)),
    "jacfwd": lambda f: jax.jacfwd(f, both)(*SMALL),
    "jacrev": lambda f: jax.jacrev(f, both)(*SMALL),
    "hessian": lambda f: jax.hessian(total(f), both)(*SMALL),
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(total(f), both), both)(*SMALL),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(total(f), both), both)(*SMALL),
    "jvp of grad": lambda f: jax.jvp(jax.grad(loss(f), both), SMALL, SMALL),
    "grad of jvp": lambda f: jax.grad(loss(along(f)), both)(*SMALL),
    "second": lambda f: jax.grad(again(loss(f)), both)(*SMALL),
    "third": lambda f: jax.grad(again(again(loss(f))), both)(*SMALL),
    "third forward": lambda f: along(along(along(f)))(*SMALL),
    "second of jvp": lambda f: jax.grad(again(loss(along(f))), both)(*SMALL),
    "vmap of jvp": lambda f: jax.vmap(lambda *t: jax.jvp(f, SMALL, t)[1])(*BATCH),
    "jvp of vmap": lambda f: jax.jvp(jax.vmap(f, (0, None)), (BATCH[0], SMALL[1]), (BATCH[0], SMALL[1])),
    "hessian of vmap": lambda f: jax.hessian(total(jax.vmap(f, (None, 0))), both)(SMALL[0], BATCH[1]),
    "vmap of hessian": lambda f: jax.vmap(jax.hessian(total(f)), (0, None))(BATCH[0], SMALL[1]),
    "batch": lambda f: jax.jvp(jax.grad(loss(f), both), BATCH, BATCH),
    "batch that shares rhs": lambda f: jax.jvp(f, (BATCH[0], SMALL[1]), (BATCH[0], SMALL[1])),
    "jvp of scan": lambda f: jax.jvp(layers(f), (SMALL[0], LAYERS), (SMALL[0], LAYERS)),
    "jvp of grad of scan": lambda f: jax.jvp(jax.grad(total(layers(f)), both), (SMALL[0], LAYERS), (SMALL[0], LAYERS)),
    "jvp of checkpoint": lambda f: jax.jvp(jax.checkpoint(f), SMALL, SMALL),
    "second of checkpoint": lambda f: jax.grad(again(loss(jax.checkpoint(f))), both)(*SMALL),
    "checkpoint in a scan": lambda f: jax.grad(total(layers(jax.checkpoint(f))), both)(SMALL[0], LAYERS),
}
OF_CHECKPOINT = [name for name in TRANSFORMS if "checkpoint" in name and "jvp" not in name]
IN_INTERPRET_MODE = ["jvp of one", "linearize", "hessian", "grad of jvp", "third", "jvp of vmap", "jvp of scan"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_by_xla(name: str) -> None:
    transform = TRANSFORMS[name]
    assert_same(jax.jit(lambda: transform(small("xla")))(), jax.jit(lambda: transform(small_plain))(), 2e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["jvp", "linearize", "second"])
def test_transforms_without_jit(name: str) -> None:
    assert_same(TRANSFORMS[name](small("xla")), TRANSFORMS[name](small_plain), 2e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", IN_INTERPRET_MODE)
def test_transforms_in_interpret_mode(name: str) -> None:
    transform = TRANSFORMS[name]
    assert_same(jax.jit(lambda: transform(small("interpret")))(), jax.jit(lambda: transform(small_plain))(), 2e-5)


@pytest.mark.parametrize("name", OF_CHECKPOINT)
def test_interpret_mode_is_not_for_checkpoints(name: str) -> None:
    """JAX refuses it, and docs/matmul.md says so: a JAX that takes it makes this fail."""
    with pytest.raises(NotImplementedError, match=r"Effects not supported in .*checkpoint"):
        TRANSFORMS[name](small("interpret"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", ["interpret", "xla"])
def test_forward_mode_of_everything_fused(by: str) -> None:
    assert_same(
        jax.jit(lambda *t: jax.jvp(fused(by), FUSED, t))(*TANGENTS), jax.jvp(fused_plain, FUSED, TANGENTS), 1e-5
    )
    for number, (array, tangent) in enumerate(zip(FUSED, TANGENTS, strict=True)):

        def one(fn: Fn, value: jax.Array, number: int = number) -> Any:
            return fn(*FUSED[:number], value, *FUSED[number + 1 :])

        found, wanted = (jax.jvp(functools.partial(one, fn), (array,), (tangent,)) for fn in (fused(by), fused_plain))
        assert_same(found, wanted, 1e-5)


def test_forward_and_reverse_over_everything_fused() -> None:
    every = tuple(range(len(FUSED)))

    def product(fn: Fn) -> Any:
        return jax.jvp(jax.grad(loss(fn), every), FUSED, TANGENTS)

    assert_same(jax.jit(lambda: product(fused("interpret")))(), product(fused_plain), 1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("transpose_lhs", "transpose_rhs"), [(True, False), (False, True), (True, True)])
def test_forward_mode_with_transposes_and_edges(transpose_lhs: bool, transpose_rhs: bool) -> None:
    lhs, rhs = normal(200, 257), normal(257, 130)
    arrays = lhs.T if transpose_lhs else lhs, rhs.T if transpose_rhs else rhs

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return systolic.matmul(
            lhs, rhs, transpose_lhs=transpose_lhs, transpose_rhs=transpose_rhs, implementation="interpret"
        )

    wanted = jnp.matmul(lhs, rhs, precision="highest")
    assert_same(jax.jvp(product, arrays, arrays), (wanted, 2 * wanted), 4e-6)


def test_forward_mode_in_bfloat16() -> None:
    """Half a step of bfloat16 in the operands' tangents, in z, and in the result."""
    arrays = normal(40, 200, dtype=BF16), normal(200, 72, dtype=BF16)

    def product(by: Any) -> Fn:
        return lambda *both: systolic.matmul(*both, activation="gelu", implementation=by)

    exact = tuple(array.astype(F32) for array in arrays)
    _, wanted = jax.jvp(lambda lhs, rhs: jax.nn.gelu(jnp.matmul(lhs, rhs, precision="highest")), exact, exact)
    _, found = jax.jvp(product("interpret"), arrays, arrays)
    assert found.dtype == BF16
    assert_same(found.astype(F32), wanted, 3 * 2.0**-8)


def test_integers_have_no_tangent() -> None:
    lhs, weight, scale = normal(8, 32), normal(32, 24, dtype=jnp.int8), normal(1, 24)

    def product(lhs: jax.Array, scale: jax.Array) -> jax.Array:
        return systolic.matmul(
            lhs, weight, rhs_fn=lambda w, s: w.astype(F32) * s, rhs_args=(scale,), implementation="interpret"
        )

    def plain(lhs: jax.Array, scale: jax.Array) -> jax.Array:
        return jnp.matmul(lhs, weight.astype(F32) * scale, precision="highest")

    assert_same(jax.jvp(product, (lhs, scale), (lhs, scale)), jax.jvp(plain, (lhs, scale), (lhs, scale)), 4e-6)

    def rounded(lhs: jax.Array) -> jax.Array:
        return systolic.matmul(lhs, weight, preferred_element_type=jnp.int8, implementation="interpret")

    out, tangent = jax.jvp(rounded, (lhs,), (lhs,))
    assert (out.dtype, tangent.dtype) == (jnp.int8, jax.dtypes.float0)


def test_only_the_products_that_are_wanted_are_computed() -> None:
    def calls(fn: Fn, *args: Any) -> int:
        return str(jax.make_jaxpr(fn)(*args)).count("pallas_call[")

    def product(*both: jax.Array) -> jax.Array:
        return systolic.matmul(*both, chip="v5e", implementation="pallas")

    lhs, rhs = normal(16, 128), normal(128, 128)
    assert calls(jax.grad(total(product), both), lhs, rhs) == 3
    assert calls(jax.grad(total(product)), lhs, rhs) == 2


SHARDED = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
import systolic

mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
random = np.random.default_rng(0)
lhs, rhs = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in ((16, 40), (40, 24)))
both = (lhs, rhs)

def plain(*arrays):
    return jax.nn.silu(jnp.matmul(*arrays))

def loss(fn):
    return lambda *arrays: (fn(*arrays) ** 2).sum()

for by in sys.argv[1:]:
    product = lambda *arrays: systolic.matmul(*arrays, activation="silu", implementation=by)
    rows = jax.shard_map(product, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    for transform in (
        lambda fn: jax.jvp(fn, both, both),
        lambda fn: jax.jvp(lambda rhs: fn(lhs, rhs), (rhs,), (rhs,)),
        lambda fn: jax.jvp(jax.grad(loss(fn), argnums=(0, 1)), both, both),
        lambda fn: jax.grad(lambda *arrays: (jax.jvp(fn, arrays, both)[1] ** 2).sum(), argnums=(0, 1))(*both),
    ):
        found, wanted = jax.jit(lambda: transform(rows))(), transform(plain)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * float(abs(other).max()))
"""


@pytest.mark.exhaustive
def test_shard_map(tmp_path: Path) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    flags = f"{quick_flags()} --xla_force_host_platform_device_count=3"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, script, "xla", "interpret"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
