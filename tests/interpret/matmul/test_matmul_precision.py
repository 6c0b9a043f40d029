"""float32 in three bfloat16 passes. Interpret mode multiplies float32 exactly, so the parts are looked at, too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from matmul_reference import values, wide

import systolic
from systolic.kernels.operands import split
from systolic.spec import SpecError

BF16 = jnp.bfloat16
LARGEST = np.finfo(np.float32).max
TINY = np.finfo(np.float32).tiny  # the smallest normal number


def bits(array: Any) -> np.ndarray:
    return np.asarray(array).view(np.uint16 if np.asarray(array).dtype.itemsize == 2 else np.uint32)


def everywhere(count: int) -> np.ndarray:
    """float32 numbers of every sign, exponent and fraction: random bits, none of them infinite or NaN."""
    random = np.random.default_rng(0).integers(0, 2**32, count, np.uint32).view(np.float32)
    edges = np.array(
        [0.0, 1.0, 1 + 2.0**-7, 1 + 2.0**-8, 1 - 2.0**-24, LARGEST, TINY, 257.0, 65535.0, 3e38], np.float32
    )
    found = np.concatenate([random, edges, -edges])
    return found[np.isfinite(found)]


@pytest.mark.parametrize("run", [split, jax.jit(split)], ids=["eager", "jit"])
def test_the_high_part_is_the_upper_half_of_the_bits(run: Any) -> None:
    """Also when XLA compiles it: a cast to bfloat16 and back is something that it may leave out."""
    x = everywhere(100_000)
    high, low = run(jnp.asarray(x))
    assert (high.dtype, low.dtype) == (BF16, BF16)
    np.testing.assert_array_equal(bits(high), (bits(x) >> 16).astype(np.uint16))


def test_both_parts_are_within_two_to_the_minus_sixteen() -> None:
    x = everywhere(100_000)
    high, low = map(wide, split(jnp.asarray(x)))
    size = np.abs(wide(x))
    # The high part has 8 bits, cut: below one step of 2^-7. The low part has 8 more, rounded: half a step.
    assert (np.abs(wide(x) - high) < 2.0**-7 * np.maximum(size, TINY)).all()
    assert (np.abs(high) <= size).all()  # cut towards zero
    normal = size > 2.0**-100  # below, the low part has no room for its bits
    assert (np.abs(wide(x) - high - low)[normal] <= 2.0**-16 * size[normal]).all()
    # And no part is more precise than bfloat16: the best that two parts do is not float32.
    assert (np.abs(wide(x) - high - low)[normal] > 2.0**-20 * size[normal]).mean() > 0.5


def test_what_is_exact_in_bfloat16_has_no_low_part() -> None:
    x = everywhere(10_000).astype(BF16).astype(np.float32)
    x = x[np.isfinite(x)]
    high, low = split(jnp.asarray(x))
    np.testing.assert_array_equal(wide(high), wide(x))
    assert not np.any(wide(low))


def test_denormals() -> None:
    """Both parts are again of bfloat16's range, which is float32's; CPUs and TPUs flush what is below to zero."""
    x = np.array([1e-39, -3e-40, 1e-45, TINY / 2], np.float32)
    high, low = split(jnp.asarray(x))
    assert (np.abs(wide(high) + wide(low) - wide(x)) <= TINY).all()
    assert (np.abs(wide(high)) <= TINY).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinities_stay_in_the_high_part(value: float) -> None:
    high, low = split(jnp.asarray([value], jnp.float32))
    assert wide(high)[0] == value
    assert np.isnan(wide(low)[0])  # ∞ − ∞, which makes NaN of the small products: they do not count then


def test_nan_stays() -> None:
    # The second has its only set bits in the half that the high part has not.
    x = np.array([0x7FC00000, 0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
    high, low = split(jnp.asarray(x))
    assert np.isnan(wide(high) + wide(low)).all()


def test_the_largest_number_does_not_become_infinite() -> None:
    """Rounding it to bfloat16 would."""
    high, low = split(jnp.asarray([LARGEST, -LARGEST], jnp.float32))
    assert np.isfinite(wide(high)).all()
    np.testing.assert_allclose(wide(high) + wide(low), [LARGEST, -LARGEST], rtol=2.0**-15)
    with np.errstate(over="raise"):
        np.add(np.asarray(high, np.float32), np.asarray(low, np.float32))


def one_pass(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    return wide(lhs.astype(BF16)) @ wide(rhs.astype(BF16))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("k", [16, 128, 1000, 1024])
def test_error_of_three_passes(k: int) -> None:
    """Between what two parts allow and far below one pass: neither of the two by accident.

    With parts of relative error up to 2^-16, half of it in the mean square at most, and the product of both low parts
    left out, of up to 2^-14, each of the k products of an element is off by a few times 2^-16, at random.
    """
    random = np.random.default_rng(k)
    lhs, rhs = values(random, (64, k), np.float32), values(random, (k, 128), np.float32)
    exact = wide(lhs) @ wide(rhs)
    high = systolic.matmul(lhs, rhs, precision="high", implementation="interpret", tiles=(64, min(k, 512), 128))
    error = np.sqrt(np.mean((wide(high) - exact) ** 2)) / np.sqrt(k)
    assert error < 2.0**-16
    assert error > 2.0**-19  # float32's own is 2^-24 or so
    full = systolic.matmul(lhs, rhs, precision="highest", implementation="interpret", tiles=(64, min(k, 512), 128))
    assert np.sqrt(np.mean((wide(full) - exact) ** 2)) / np.sqrt(k) < error / 10
    assert np.sqrt(np.mean((one_pass(lhs, rhs) - exact) ** 2)) / np.sqrt(k) > 50 * error


def test_three_passes_are_these_three() -> None:
    """low·high + high·low + high·high in float32, and nothing else: found again in NumPy to the rounding of float32."""
    random = np.random.default_rng(0)
    lhs, rhs = values(random, (40, 300), np.float32), values(random, (300, 130), np.float32)
    (lhs_high, lhs_low), (rhs_high, rhs_low) = (map(wide, split(jnp.asarray(array))) for array in (lhs, rhs))
    wanted = lhs_low @ rhs_high + lhs_high @ rhs_low + lhs_high @ rhs_high
    for transposed in (False, True):
        arrays = (lhs.T, rhs.T) if transposed else (lhs, rhs)
        turned: dict[str, Any] = {"transpose_lhs": transposed, "transpose_rhs": transposed}
        found = systolic.matmul(*arrays, precision=lax.Precision.HIGH, implementation="interpret", **turned)
        np.testing.assert_allclose(wide(found), wanted, rtol=0, atol=300**0.5 * 6 * 2.0**-24 * 8)


def dots(precision: Any, lhs: Any = jnp.float32, rhs: Any = jnp.float32, **keywords: Any) -> list[tuple[str, str, Any]]:
    """Operand dtypes and precision of every product in the kernel."""
    found = []

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                left, right = (one.aval.dtype.name for one in equation.invars)
                found.append((left, right, equation.params["precision"]))
            for value in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
            ):
                if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                    visit(getattr(value, "jaxpr", value))

    arrays = jnp.ones((64, 128), lhs), jnp.ones((128, 128), rhs)
    fn = jax.make_jaxpr(
        lambda *a: systolic.matmul(*a, precision=precision, implementation="pallas", chip="v5p", **keywords)
    )
    visit(fn(*arrays).jaxpr)
    return found


ONE, EXACT = (lax.Precision.DEFAULT,) * 2, (lax.Precision.HIGHEST,) * 2


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [
        (None, [("float32", "float32", ONE)]),
        ("default", [("float32", "float32", ONE)]),
        (lax.Precision.DEFAULT, [("float32", "float32", ONE)]),
        ("high", [("bfloat16", "bfloat16", ONE)] * 3),
        (lax.Precision.HIGH, [("bfloat16", "bfloat16", ONE)] * 3),
        ("bfloat16_3x", [("bfloat16", "bfloat16", ONE)] * 3),
        ("highest", [("float32", "float32", EXACT)]),
        (lax.Precision.HIGHEST, [("float32", "float32", EXACT)]),
        ((lax.Precision.HIGHEST, lax.Precision.HIGHEST), [("float32", "float32", EXACT)]),
        (("tensorfloat32", "high"), [("bfloat16", "bfloat16", ONE)] * 3),
        (lax.DotAlgorithmPreset.BF16_BF16_F32, [("float32", "float32", ONE)]),
        (lax.DotAlgorithmPreset.BF16_BF16_F32_X3, [("bfloat16", "bfloat16", ONE)] * 3),
        ("BF16_BF16_F32_X6", [("float32", "float32", EXACT)]),
        (lax.DotAlgorithm(BF16, BF16, np.float32, num_primitive_operations=3), [("bfloat16", "bfloat16", ONE)] * 3),
    ],
)
def test_what_reaches_the_matrix_unit(precision: Any, wanted: list[Any]) -> None:
    assert dots(precision) == wanted


@pytest.mark.parametrize("precision", ["default", "high", "highest"])
def test_other_dtypes_have_one_pass_whatever_is_asked(precision: str) -> None:
    """HIGHEST on bfloat16 operands is refused by the compiler, and would change nothing."""
    assert dots(precision, BF16, BF16) == [("bfloat16", "bfloat16", ONE)]
    assert dots(precision, BF16, jnp.int8) == [("bfloat16", "bfloat16", ONE)]
    assert dots(precision, jnp.int8, jnp.int8) == [("int8", "int8", ONE)]


@pytest.mark.parametrize(
    ("default", "wanted"),
    [
        ("tensorfloat32", [("bfloat16", "bfloat16", ONE)] * 3),
        ("float32", [("float32", "float32", EXACT)]),
        ("bfloat16", [("float32", "float32", ONE)]),
        ("BF16_BF16_F32_X3", [("bfloat16", "bfloat16", ONE)] * 3),
    ],
)
def test_the_surrounding_default_as_jax_spells_it(default: str, wanted: list[Any]) -> None:
    with jax.default_matmul_precision(default):
        assert dots(None) == wanted


def test_algorithms_that_no_tpu_has_are_refused_by_name() -> None:
    """JAX's `F32_F32_F32` is refused by the TPU compiler, too: six passes are called `highest`."""
    for name in ("F32_F32_F32", "TF32_TF32_F32", "BF16_BF16_F32_X9"):
        for spelled in (name, lax.DotAlgorithmPreset[name]):
            with pytest.raises(SpecError, match=f"^precision={name}: no TPU has .*; choose from default, high"):
                dots(spelled)
    with (
        jax.default_matmul_precision("TF32_TF32_F32"),
        pytest.raises(SpecError, match=r"jax\.default_matmul_precision=TF32"),
    ):
        dots(None)
    with pytest.raises(SpecError, match=r"DotAlgorithm.*num_primitive_operations=9.*no TPU has"):
        dots(lax.DotAlgorithm(BF16, BF16, np.float32, num_primitive_operations=9))


def test_every_op_takes_the_same_spellings() -> None:
    preset = lax.DotAlgorithmPreset.BF16_BF16_F32_X6
    lhs, rhs = jnp.ones((8, 16)), jnp.ones((16, 24))
    for out in (
        systolic.gated_matmul(lhs, rhs, rhs, activation=None, precision=preset) / 16,
        systolic.grouped_matmul(lhs, rhs[None], np.array([8]), precision="tensorfloat32"),
        systolic.dot_general(lhs, rhs, (((1,), (0,)), ((), ())), preset, jnp.float32, implementation="interpret"),
        systolic.einsum("mk,kn->mn", lhs, rhs, precision="bfloat16_3x", implementation="interpret"),
    ):
        np.testing.assert_array_equal(out, np.full((8, 24), 16.0))


def test_the_surrounding_default_counts() -> None:
    with jax.default_matmul_precision("highest"):
        assert dots(None) == [("float32", "float32", EXACT)]
        assert dots("default") == [("float32", "float32", ONE)]


def test_the_backward_pass_has_the_precision_too() -> None:
    lhs, rhs = jnp.ones((64, 128)), jnp.ones((128, 128))

    def slope(precision: str) -> str:
        def loss(*arrays: jax.Array) -> jax.Array:
            return systolic.matmul(*arrays, precision=precision, implementation="pallas", chip="v5p").sum()

        return str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(lhs, rhs))

    assert slope("highest").count("Precision.HIGHEST") >= 3
    assert "Precision.HIGHEST" not in slope("high")
    assert slope("high").count("dot_general[") == 9


@pytest.mark.exhaustive
def test_fused_and_gradients_in_three_passes() -> None:
    random = np.random.default_rng(0)
    lhs, rhs, bias = (jnp.asarray(values(random, shape, np.float32)) for shape in ((40, 200), (200, 130), (130,)))

    def loss(by: Any) -> Any:
        return jax.value_and_grad(lambda *arrays: by(*arrays).sum(), argnums=(0, 1, 2))(lhs, rhs, bias)

    found = loss(
        lambda a, b, c: systolic.matmul(a, b, bias=c, activation="silu", precision="high", implementation="interpret")
    )
    wanted = loss(lambda a, b, c: jax.nn.silu(jnp.matmul(a, b, precision="highest") + c))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2.0**-14 * float(jnp.abs(other).max()))
