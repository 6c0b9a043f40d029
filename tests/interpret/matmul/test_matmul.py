"""`systolic.matmul` in TPU interpret mode against float64: every size, dtype, transpose, fusion and batch."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from matmul_reference import Call, values, wide
from selection import examples

import systolic
from systolic.chips import chip
from systolic.kernels.epilogue import Functions
from systolic.ops.engine.activations import ACTIVATIONS
from systolic.ops.engine.backend import Backend
from systolic.ops.matmul.kernel.auto_pipeline import auto_pipeline_matmul
from systolic.ops.matmul.kernel.launch import MatmulKernel
from systolic.ops.matmul.product import Product, spec_of
from systolic.schedule import KernelConfig, Tiles, config_violations
from systolic.schedule.legality import alignment
from systolic.spec import Operands, PrecisionName

CAREFUL = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", num_cores_or_threads=1)
# Operands, result, a chip that multiplies them.
DTYPES: dict[str, tuple[Any, Any, Any, str]] = {
    "float32": (jnp.float32, jnp.float32, jnp.float32, "v5e"),
    "bfloat16": (jnp.bfloat16, jnp.bfloat16, jnp.bfloat16, "v6e"),
    "bfloat16 to float32": (jnp.bfloat16, jnp.bfloat16, jnp.float32, "v5p"),
    "int8": (jnp.int8, jnp.int8, jnp.int32, "v5e"),
    "float8_e4m3fn": (jnp.float8_e4m3fn, jnp.float8_e4m3fn, jnp.float32, "v7x"),
    "float8_e5m2": (jnp.float8_e5m2, jnp.float8_e5m2, jnp.bfloat16, "v7x"),
    "bfloat16 × int8": (jnp.bfloat16, jnp.int8, jnp.float32, "v4"),
}
SIZES = [1, 7, 31, 64, 100, 127, 128, 129, 211, 256, 257, 300]
# A failure takes long to shrink here, and the cases are small as they are.
MANY = settings(derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate])


def negative_part(x: jax.Array) -> jax.Array:
    return jnp.minimum(x.astype(jnp.float32), 0).astype(jnp.bfloat16)


def scaled(x: jax.Array, scale: jax.Array) -> jax.Array:
    return (x.astype(jnp.float32) * scale).astype(jnp.bfloat16)


def masked(x: jax.Array, keep: jax.Array) -> jax.Array:
    return jnp.where(keep > 0, x.astype(jnp.float32), 0.0).astype(jnp.bfloat16)


def check(call: Call, implementation: Any = CAREFUL, **keywords: Any) -> None:
    call.check(systolic.matmul(call.lhs, call.rhs, implementation=implementation, **call.keywords, **keywords))


# --- every configuration ---------------------------------------------------------------------------------------------


def auto_pipelined(call: Call, config: KernelConfig, name: str, precision: PrecisionName = "default") -> jax.Array:
    """The kernel itself, with a configuration that the planner need not choose."""
    keywords = call.keywords
    activation = keywords.get("activation")
    product = Product(
        backend=Backend(implementation=CAREFUL, chip=chip(name), tiles=None),
        precision=precision,
        dtype_out=np.dtype(keywords["preferred_element_type"]).name,
        functions=Functions(
            lhs=keywords.get("lhs_fn"),
            rhs=keywords.get("rhs_fn"),
            activation=ACTIVATIONS[activation] if activation else None,
        ),
        transpose_lhs=keywords.get("transpose_lhs", False),
        transpose_rhs=keywords.get("transpose_rhs", False),
        activation=activation or "",
    )
    around = {"bias": "bias", "residual": "residual", "scale": "out_scale"}
    given = Operands(
        lhs=call.lhs,
        rhs=call.rhs,
        lhs_args=tuple(keywords.get("lhs_args", ())),
        rhs_args=tuple(keywords.get("rhs_args", ())),
        **{name: keywords[key] for name, key in around.items() if key in keywords},
    )
    matrices = given.map(lambda array: jnp.asarray(np.atleast_2d(array)))
    operands = matrices.map(lambda one: one.reshape(*(1,) * (matrices.lhs.ndim - one.ndim), *one.shape))
    spec = spec_of(product, operands)
    # One that leaves a core idle is slow, and right all the same.
    assert {each.rule for each in config_violations(spec, config, chip(name))} <= {"pipeline"}

    kernel = MatmulKernel(
        spec=spec,
        functions=product.functions,
        config=config,
        chip=chip(name),
        vmem_limit_bytes=chip(name).scoped_vmem_bytes,
        interpret=CAREFUL,
    )
    (out,) = jax.jit(lambda operands: auto_pipeline_matmul(operands, kernel))(operands)
    return out


@st.composite
def calls(draw: st.DrawFn, batched: bool = False) -> tuple[Call, str]:
    """A call, and a chip for it."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype_lhs, dtype_rhs, dtype_out, name = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    m, k, n = (draw(st.sampled_from(SIZES)) for _ in range(3))
    batch_lhs, batch_rhs = draw(st.sampled_from([((), ()), ((3,), ()), ((), (2,)), ((2,), (2,)), ((2, 1), (1, 3))]))
    batch_lhs, batch_rhs = (batch_lhs, batch_rhs) if batched else ((), ())
    keywords: dict[str, Any] = {"preferred_element_type": dtype_out}
    shapes: list[tuple[int, ...]] = [(*batch_lhs, m, k), (*batch_rhs, k, n)]
    for number, side in enumerate(("lhs", "rhs")):
        if draw(st.booleans()):
            keywords[f"transpose_{side}"] = True
            shapes[number] = (*shapes[number][:-2], *shapes[number][:-3:-1])
    lhs, rhs = (values(random, shape, dtype) for shape, dtype in zip(shapes, (dtype_lhs, dtype_rhs), strict=True))
    for side, array in (("lhs", lhs), ("rhs", rhs)):
        kind = draw(st.sampled_from(["", "", "alone", "rows", "columns", "whole"]))
        if kind == "alone":
            keywords[f"{side}_fn"] = negative_part
        elif kind:
            rows, columns = array.shape[-2:]
            shape = {"rows": (rows, 1), "columns": (1, columns), "whole": (rows, columns)}[kind]
            keywords[f"{side}_fn"] = masked if kind == "whole" else scaled
            keywords[f"{side}_args"] = (random.standard_normal(shape, np.float32),)
    if draw(st.booleans()):
        keywords["bias"] = random.standard_normal(n, np.float32)
    keywords |= draw(st.sampled_from([{}, {"activation": "relu"}, {"activation": "gelu"}, {"activation": "sigmoid"}]))
    if draw(st.booleans()):
        batch = np.broadcast_shapes(batch_lhs, batch_rhs)
        shape = draw(st.sampled_from([(*batch, m, n), (m, n), (m, 1), (1, n)]))
        keywords["residual"] = random.standard_normal(shape, np.float32).astype(
            draw(st.sampled_from([dtype_out, "f4"]))
        )
    if draw(st.booleans()):
        keywords["out_scale"] = random.standard_normal(draw(st.sampled_from([(m, 1), (1, n), (1, 1)])), np.float32)
    return Call(lhs=lhs, rhs=rhs, keywords=keywords), name


@st.composite
def configs(draw: st.DrawFn, call: Call) -> KernelConfig:
    """Tiles with edges and several steps each way, and subtiles of them."""
    lhs, rhs = call.operands()
    (m, k), n = lhs.shape[-2:], rhs.shape[-1]
    keywords = call.keywords
    spec = systolic.MatmulSpec(
        m=m,
        k=k,
        n=n,
        dtype_lhs=call.lhs.dtype.name,
        dtype_rhs=call.rhs.dtype.name,
        dtype_out=np.dtype(keywords["preferred_element_type"]).name,
        transpose_lhs=keywords.get("transpose_lhs", False),
        transpose_rhs=keywords.get("transpose_rhs", False),
    )
    tiles = {}
    for letter, multiple in alignment(spec).items():
        size = getattr(spec, letter)
        shorter = [side for side in range(multiple, size, multiple) if size / side <= 4]
        tiles[f"tile_{letter}"] = draw(st.sampled_from(shorter)) if shorter and draw(st.integers(0, 3)) else size
    subtiles = {
        "subtile_m": draw(
            st.sampled_from([s for s in range(1, 999) if tiles["tile_m"] % s == 0 and s % 32 == 0] or [0])
        ),
        "subtile_n": draw(st.sampled_from([s for s in (128, 256) if tiles["tile_n"] % s == 0] or [0])),
    }
    return KernelConfig(
        tiles=Tiles(**tiles),
        subtile_m=subtiles["subtile_m"] or tiles["tile_m"],
        subtile_n=subtiles["subtile_n"] or tiles["tile_n"],
        **draw(st.sampled_from([{}, {"pipeline": "emit", "num_stages": 3}])),
        grid_order=draw(st.sampled_from(["m", "n"])),
    )


@settings(MANY, max_examples=examples(14))
@given(data=st.data())
def test_every_configuration(data: st.DataObject) -> None:
    call, name = data.draw(calls())
    config = data.draw(configs(call))
    call.check(auto_pipelined(call, config, name))


# --- the function ----------------------------------------------------------------------------------------------------


@settings(MANY, max_examples=examples(10))
@given(drawn=calls(batched=True))
def test_any_call(drawn: tuple[Call, str]) -> None:
    call, name = drawn
    keywords = dict(call.keywords)
    for side, array in (("lhs", call.lhs), ("rhs", call.rhs)):
        # Arguments of functions broadcast to their operand as it is stored.
        assert all(
            np.broadcast_shapes(arg.shape, array.shape) == array.shape for arg in keywords.get(f"{side}_args", ())
        )
    check(call, chip=name)


def test_no_race_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    """Two cores, three steps each way, both pipelines; `test_ladder` has the control."""
    random = np.random.default_rng(0)
    call = Call(lhs=values(random, (300, 300), jnp.float32), rhs=values(random, (300, 300), jnp.float32))
    careful = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2, random_seed=1)
    check(call, careful, chip="v5p", tiles=(104, 128, 128))
    call = Call(lhs=call.lhs, rhs=call.rhs, keywords={"preferred_element_type": jnp.float32})
    tiles = Tiles(tile_m=104, tile_k=128, tile_n=128)
    for grid_order in ("m", "n"):
        call.check(
            auto_pipelined(
                call,
                KernelConfig(
                    tiles=tiles, subtile_m=104, subtile_n=128, pipeline="emit", num_stages=3, grid_order=grid_order
                ),
                "v5e",
            )
        )
    assert "RACE" not in capfd.readouterr().out


# Sizes of the padded matmul among JAX's own tests: 1 to 1024, in blocks of 8 to 512.
PADDED: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = [
    ((1, 1, 1), (1, 1, 1)),
    ((9, 1024, 130), (8, 512, 128)),
    ((1024, 130, 9), (512, 128, 9)),
    ((513, 512, 1023), (256, 512, 512)),
    ((1000, 999, 1001), (512, 512, 512)),
    ((1024, 1024, 1024), (512, 256, 512)),
    ((77, 1021, 641), (64, 256, 256)),
    ((31, 640, 257), (16, 128, 128)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("sizes", "tiles"), PADDED)
def test_padded(sizes: tuple[int, int, int], tiles: tuple[int, int, int]) -> None:
    m, k, n = sizes
    random = np.random.default_rng(m)
    call = Call(lhs=values(random, (m, k), jnp.float32), rhs=values(random, (k, n), jnp.float32))
    check(call, "interpret", tiles=tiles)


# Pairs of shapes: vectors, matrices, batches that are equal, broadcast, or only on one side.
PAIRS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)),
    ((1,), (1,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((1, 3), (3, 1)),
    ((1, 1), (1, 5)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((5, 1, 3), (5, 3, 1)),
    ((5, 8, 3), (3, 4)),
    ((4, 6, 2, 3), (3,)),
    ((4, 6, 2, 3), (3, 5)),
    ((4, 6, 2, 3), (6, 3, 5)),
    ((4, 1, 2, 3), (1, 6, 3, 5)),
    ((6, 2, 3), (4, 1, 3, 5)),
    ((2, 1, 3, 2, 3), (4, 1, 3, 5)),
    ((3,), (2, 2, 3, 5)),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("lhs", "rhs"), PAIRS)
def test_pairs_of_shapes(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    arrays = values(random, lhs, jnp.float32), values(random, rhs, jnp.float32)
    for implementation in ("interpret", "xla", None):
        found = np.asarray(systolic.matmul(*arrays, implementation=implementation))
        wanted = np.matmul(*map(wide, arrays))
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("side", ["row", "column", "both"])
def test_vectors_with_everything_beside_them(side: Literal["row", "column", "both"]) -> None:
    """The output of a vector lacks an axis, and so has what is added to it."""
    random = np.random.default_rng(0)
    lhs = values(random, (3, 40) if side == "both" else (40,) if side == "row" else (2, 9, 40), jnp.float32)
    rhs = values(random, (2, 40, 7) if side == "row" else (40,), jnp.float32)
    lhs = lhs[0] if side == "both" else lhs
    shape = np.matmul(lhs, rhs).shape
    beside: dict[str, Any] = {
        "residual": values(random, shape, jnp.float32),
        "out_scale": values(random, shape[-1:], jnp.float32),
    }
    bias = values(random, (7,) if side == "row" else (1,), jnp.float32)
    found = systolic.matmul(lhs, rhs, bias=bias, activation="tanh", implementation="interpret", **beside)
    total = np.matmul(wide(lhs), wide(rhs)) + (wide(bias) if side == "row" else wide(bias)[0])
    assert found.shape == shape
    np.testing.assert_allclose(found, (np.tanh(total) + beside["residual"]) * beside["out_scale"], atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("transpose_lhs", "transpose_rhs"), list(itertools.product([False, True], repeat=2)))
def test_transposes_of_slices_of_a_larger_array(transpose_lhs: bool, transpose_rhs: bool) -> None:
    """Slices are taken outside of the kernel, inside of one jitted function, and each product is fused with a stack."""
    random = np.random.default_rng(0)
    large = values(random, (2, 400, 400), jnp.float32)
    keywords: dict[str, Any] = {"transpose_lhs": transpose_lhs, "transpose_rhs": transpose_rhs}
    lhs_at = np.s_[0, 100:300, 7:140] if transpose_lhs else np.s_[0, 7:140, 100:300]
    rhs_at = np.s_[1, 33:188, 200:400] if transpose_rhs else np.s_[1, 200:400, 33:188]

    @jax.jit
    def fn(large: jax.Array) -> jax.Array:
        return systolic.matmul(
            large[lhs_at],
            large[rhs_at],
            bias=large[0, 5, 33:188],
            activation="silu",
            residual=large[1, 200:333, 10:165],
            tiles=(128, 128, 128),
            implementation=CAREFUL,
            **keywords,
        )

    beside = {"bias": large[0, 5, 33:188], "activation": "silu", "residual": large[1, 200:333, 10:165]}
    Call(lhs=large[lhs_at], rhs=large[rhs_at], keywords={**keywords, **beside}).check(fn(large))


@pytest.mark.sampled
@pytest.mark.parametrize("implementation", ["interpret", "xla", None])
@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [((0, 5), (5, 3)), ((4, 5), (5, 0)), ((4, 0), (0, 3)), ((0, 4, 5), (5, 3)), ((0,), (0, 3)), ((0,), (0,)),
     ((2, 4, 0), (1, 0, 3)), ((0, 4, 5), (1, 5, 3)), ((0, 0), (0, 0))],
)  # fmt: skip
def test_nothing_to_multiply(lhs: tuple[int, ...], rhs: tuple[int, ...], implementation: Any) -> None:
    left, right = np.ones(lhs, np.float32), np.ones(rhs, np.float32)
    wanted = np.matmul(left, right)
    found = systolic.matmul(left, right, implementation=implementation)
    assert (found.shape, found.dtype) == (wanted.shape, jnp.float32)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_a_sum_over_nothing_is_zero_and_all_else_is_done(implementation: Any) -> None:
    random = np.random.default_rng(0)
    beside: dict[str, Any] = {
        "residual": values(random, (4, 3), jnp.float32),
        "bias": values(random, (3,), jnp.float32),
    }
    call = Call(
        lhs=np.ones((4, 0), np.float32),
        rhs=np.ones((0, 3), np.float32),
        keywords={**beside, "activation": "sigmoid", "out_scale": np.float32(2)},
    )
    check(call, implementation)
    grads = jax.grad(lambda b, r: systolic.matmul(call.lhs, call.rhs, bias=b, residual=r, out_scale=2.0).sum(), (0, 1))(
        beside["bias"], beside["residual"]
    )
    np.testing.assert_array_equal(grads[0], np.full(3, 8.0))
    np.testing.assert_array_equal(grads[1], np.full((4, 3), 2.0))


@pytest.mark.parametrize("scale", [1.0, 1 / 64, 3.7e-4])
def test_requantizing_rounds_and_saturates(scale: float) -> None:
    random = np.random.default_rng(0)
    lhs, rhs = values(random, (40, 200), jnp.int8), values(random, (200, 130), jnp.int8)
    sums = lhs.astype(np.int64) @ rhs.astype(np.int64)
    found = systolic.matmul(lhs, rhs, out_scale=scale, preferred_element_type=jnp.int8, implementation="interpret")
    wanted = np.clip(np.rint(sums.astype(np.float32) * np.float32(scale)), -128, 127)
    assert found.dtype == jnp.int8
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > 10 or scale == 1.0


def test_batches_of_the_same_weight_become_rows() -> None:
    """One product of many rows reads the weight less often: seen in the grid of the kernel."""
    lhs, rhs = np.ones((3, 2, 16, 40), np.float32), np.ones((40, 50), np.float32)
    jaxpr = jax.make_jaxpr(lambda *arrays: systolic.matmul(*arrays, implementation="interpret"))(lhs, rhs)
    assert f"f32[{math.prod(lhs.shape[:-1])},50]" in str(jaxpr)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["v4", "v5e", "v7x"])
def test_a_function_traced_for_a_chip_runs_on_the_cpu(name: str) -> None:
    """`implementation=None` with a chip: the kernel is in the program for a TPU, and XLA's product runs here."""
    random = np.random.default_rng(0)
    call = Call(lhs=values(random, (130, 257), jnp.float32), rhs=values(random, (257, 140), jnp.float32))
    check(call, None, chip=name)
    jaxpr = str(jax.make_jaxpr(lambda *arrays: systolic.matmul(*arrays, chip=name))(call.lhs, call.rhs))
    assert "pallas_call" in jaxpr
    assert "dot_general" in jaxpr
