"""Every rung in TPU interpret mode against float64 (int64), and everything that a rung refuses."""

import functools
import pickle
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.bench.accuracy import check, operands
from systolic.lessons.ladder import RUNGS
from systolic.lessons.ladder.rules import bands
from systolic.lessons.ladder.rungs import clipped
from systolic.schedule import IllegalTilesError, Tiles
from systolic.spec import MatmulSpec, SpecError

DTYPES = ("float32", "bfloat16", "int8")
# (m, k, n), N of v2. The tiles from v3 on are 128³, so the odd multiples have several steps each way.
SHAPES = {
    "one-element": ((1, 1, 1), 1),
    "minimal": ((32, 128, 128), 1),
    "whole-ragged": ((100, 70, 30), 1),  # no side a multiple of anything, in one block
    "odd-multiples": ((256, 384, 128), 1),
    "wide": ((128, 256, 512), 4),
    "deep": ((128, 1024, 128), 1),
}


def tiles_of(name: str, spec: MatmulSpec, splits: int) -> Tiles:
    rung = RUNGS[name]
    small = all(size <= 128 for size in (spec.m, spec.k, spec.n))
    return clipped(Tiles.cube(128), spec) if rung.takes_tiles and not small else rung.default_tiles(spec, splits)


def run(name: str, spec: MatmulSpec, tiles: Tiles, interpret: object) -> Callable[..., jax.Array]:
    return functools.partial(RUNGS[name].multiply, tiles=tiles, dtype_out=spec.dtype_out, interpret=interpret)


@pytest.mark.sampled
@pytest.mark.paired
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", RUNGS)
def test_right(name: str, shape: str, dtype: str) -> None:
    (m, k, n), splits = SHAPES[shape]
    spec = MatmulSpec.of(m, k, n, dtype)
    tiles = tiles_of(name, spec, splits)
    roundings = RUNGS[name].output_roundings(spec, tiles)
    accuracy = check(run(name, spec, tiles, pltpu.InterpretParams()), spec, roundings)
    assert accuracy.ok, accuracy


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RUNGS)
def test_default_tiles_at_512(name: str, dtype: str) -> None:
    spec = MatmulSpec.of(512, 512, 512, dtype)
    tiles = RUNGS[name].default_tiles(spec, 4)
    roundings = RUNGS[name].output_roundings(spec, tiles)
    assert roundings == (4 if name == "v3" else 1)
    accuracy = check(run(name, spec, tiles, pltpu.InterpretParams()), spec, roundings, seed=1)
    assert accuracy.ok, accuracy


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RUNGS)
def test_other_output_dtype(name: str) -> None:
    spec = MatmulSpec.of(256, 256, 256, "bfloat16", "float32")
    tiles = tiles_of(name, spec, 2)
    roundings = RUNGS[name].output_roundings(spec, tiles)
    accuracy = check(run(name, spec, tiles, pltpu.InterpretParams()), spec, roundings)
    assert accuracy.ok, accuracy


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RUNGS)
def test_plain_interpreter_agrees(name: str) -> None:
    spec = MatmulSpec.of(256, 256, 256, "float32")
    tiles = tiles_of(name, spec, 2)
    accuracy = check(run(name, spec, tiles, True), spec, RUNGS[name].output_roundings(spec, tiles))
    assert accuracy.ok, accuracy


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", RUNGS)
def test_no_race_and_nothing_read_before_it_is_written(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    spec = MatmulSpec.of(256, 256, 256, "float32")
    tiles = tiles_of(name, spec, 2)
    careful = pltpu.InterpretParams(uninitialized_memory="nan", detect_races=True, num_cores_or_threads=2)
    accuracy = check(run(name, spec, tiles, careful), spec, RUNGS[name].output_roundings(spec, tiles))
    assert accuracy.ok, accuracy
    assert "RACE" not in capfd.readouterr().out


def test_a_planted_race_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    """The control of the test above: two cores write one block."""

    def kernel(out_vmem):  # [8, 128] float32
        out_vmem[...] = jnp.full_like(out_vmem, pl.program_id(0))

    call = pl.pallas_call(
        kernel,
        grid=(2,),
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2),
    )
    # jax 0.10 prints a race, jax 0.12 raises an error.
    try:
        call().block_until_ready()
        said = ""
    except jax.errors.JaxRuntimeError as error:
        said = str(error)
        pltpu.reset_tpu_interpret_mode_state()
    assert "RACE DETECTED" in said + capfd.readouterr().out


def test_v5_rounds_less_than_v3_in_bfloat16() -> None:
    spec = MatmulSpec.of(128, 1024, 128, "bfloat16")
    v3, v5 = (
        check(run(name, spec, Tiles.cube(128), pltpu.InterpretParams()), spec, 8).max_abs_error for name in ("v3", "v5")
    )
    assert 1.5 * v5 < v3


TILED = tuple(name for name, rung in RUNGS.items() if rung.takes_tiles)
ILLEGAL = {
    "tile above the matrix": (TILED, (128, 128, 128), Tiles(tile_m=256, tile_k=128, tile_n=512), "float32",
                              ("tile_m=256 is above m=128", "tile_n=512 is above n=128", "tile_m≤128")),
    "a tail of k": (TILED, (128, 200, 128), Tiles.cube(128), "float32",
                    ("k=200 is not a multiple of tile_k=128", "the last 72 of k would be lost", "256")),
    "every side ragged": (TILED, (200, 300, 400), Tiles.cube(128), "bfloat16",
                          ("the last 72 of m", "the last 44 of k", "the last 16 of n")),
    "tile of 100": (TILED, (200, 200, 200), Tiles.cube(100), "float32",
                    ("tile_m=100 is not a multiple of 8", "tile_k=100 is not a multiple of 128", "tile_n=200")),
    "8 rows of int8": (TILED, (64, 128, 128), Tiles(tile_m=8, tile_k=128, tile_n=128), "int8",
                       ("tile_m=8 is not a multiple of 32",)),
    "tiles for v1": (("v1",), (256, 256, 256), Tiles.cube(128), "float32", ("128/128/128 of 256/256/256", "v3")),
    "a tile above the matrix for v1": (("v1",), (256, 256, 256), Tiles.cube(512), "float32",
                                       ("tile_m=512 is above m=256", "v1 takes 256/256/256 only")),
}  # fmt: skip


@pytest.mark.parametrize(("name", "case"), [(name, case) for case, (names, *_) in ILLEGAL.items() for name in names])
def test_refused(name: str, case: str) -> None:
    _, (m, k, n), tiles, dtype, said = ILLEGAL[case]
    spec = MatmulSpec.of(m, k, n, dtype)
    lhs, rhs = operands(spec)
    with pytest.raises(IllegalTilesError) as caught:
        run(name, spec, tiles, pltpu.InterpretParams())(lhs, rhs)
    assert isinstance(caught.value, ValueError)
    assert list(caught.value.violations) == RUNGS[name].rules(spec, tiles)
    for words in (f"{name}: ", *said):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("m", "n", "splits", "said"),
    [
        (100, 128, 3, ("m=100 is not a multiple of tile_m=34", "use N=1")),
        (512, 500, 3, ("n=500 is not a multiple of tile_n=167",)),
        (72, 128, 10, ("m=72 is not a multiple of tile_m=10",)),  # 8 and 9 rows divide 72, but are not a tenth of it
        (1, 1, 4, ("tile_m=2 is above m=1", "tile_n=2 is above n=1", "use N=1")),
        (256, 256, 4, ("tile_n=64 is not a multiple of 128", "use N=1 or 2")),
    ],
)
def test_v2_refuses_an_n_that_does_not_divide(m: int, n: int, splits: int, said: tuple[str, ...]) -> None:
    spec = MatmulSpec.of(m, 128, n, "float32")
    lhs, rhs = operands(spec)
    with pytest.raises(IllegalTilesError) as caught:
        run("v2", spec, bands(spec, splits), pltpu.InterpretParams())(lhs, rhs)
    for words in said:
        assert words in str(caught.value)


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize(
    ("lhs", "rhs", "said"),
    [
        ((0, 128), (128, 128), "m=0"),
        ((128, 0), (0, 128), "k=0"),
        ((128, 128), (256, 128), "lhs[128, 128] @ rhs[256, 128]"),
        ((128,), (128, 128), "lhs[128]"),
    ],
)
def test_no_product(name: str, lhs: tuple[int, ...], rhs: tuple[int, ...], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        RUNGS[name].multiply(
            np.zeros(lhs, np.float32), np.zeros(rhs, np.float32), tiles=Tiles.cube(128), dtype_out="float32"
        )
    assert said in str(caught.value)


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize(
    ("dtype_lhs", "dtype_rhs", "dtype_out"),
    [
        ("int8", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("int8", "int8", "bfloat16"),
        ("bfloat16", "bfloat16", "int8"),
        ("int8", "int8", "int16"),
    ],
)
def test_dtypes_refused(name: str, dtype_lhs: str, dtype_rhs: str, dtype_out: str) -> None:
    lhs, rhs = jnp.zeros((128, 128), dtype_lhs), jnp.zeros((128, 128), dtype_rhs)
    with pytest.raises(IllegalTilesError, match=f"{dtype_lhs}.*{dtype_rhs if dtype_lhs != dtype_rhs else dtype_out}"):
        RUNGS[name].multiply(lhs, rhs, tiles=Tiles.cube(128), dtype_out=dtype_out)


@pytest.mark.parametrize("name", RUNGS)
def test_no_rung_requantizes(name: str) -> None:
    spec = MatmulSpec.of(128, 128, 128, "int8", "int8")
    with pytest.raises(IllegalTilesError, match="first_matmul"):
        run(name, spec, Tiles.cube(128), False)(*operands(spec))


def test_a_refusal_survives_the_way_out_of_a_worker() -> None:
    spec = MatmulSpec.of(128, 128, 128, "float32")
    error = IllegalTilesError("v3", RUNGS["v3"].rules(spec, Tiles.cube(256)))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.violations == error.violations
