"""`systolic.matmul` in TPU interpret mode against float64: every size, dtype, transpose, fusion and batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from matmul_reference import Call, values
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


@pytest.mark.exhaustive
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
