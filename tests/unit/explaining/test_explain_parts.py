"""The parts of an explanation that need no compiler: tile sizes, what is equivalent, words."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explanations import a_run, analysed
from jax.experimental import pallas as pl
from kernels import call_of, product, shape

from systolic.chips import chip
from systolic.explaining.baseline import equivalent_matmul
from systolic.explaining.bottleneck import bottleneck
from systolic.explaining.candidates import tile_candidate, tile_sizes
from systolic.explaining.explanation import Program
from systolic.explaining.parameters import TileParameter, tile_parameters
from systolic.explaining.resizing import WithKeywords, with_sizes
from systolic.explaining.summary import replacement_savings
from systolic.explaining.timeline_windows import timeline_windows
from systolic.simulator import CoreRun, OpRun, SimulatedRun, Span

BF16 = functools.partial(shape, jnp.bfloat16)
ARGS = (BF16(1024, 512), BF16(512, 768))


@dataclass(frozen=True)
class Sizes:
    rows: int = 256
    columns: int = 128
    passes: int = 3


def by_tuple(lhs: Any, rhs: Any, *, blocks: tuple[int, int, int] = (512, 256, 128), scale: float = 1.0) -> Any:
    del scale
    return product(lhs, rhs, tile_m=blocks[0], tile_k=blocks[1], tile_n=blocks[2])


def by_record(lhs: Any, rhs: Any, *, sizes: Sizes = Sizes(), flag: bool = True) -> Any:
    del flag
    return product(lhs, rhs, tile_m=sizes.rows, tile_n=sizes.columns)


def names(fn: Any) -> dict[str, tuple[int, int]]:
    found = tile_parameters(fn, [call_of(fn, *ARGS)])
    return {str(each): (each.value, each.largest) for each in found}


def test_tile_sizes_are_keywords_that_are_sizes_of_blocks() -> None:
    assert names(functools.partial(product, tile_m=512, tile_n=128)) == {
        "tile_m": (512, 1024),
        "tile_k": (256, 512),
        "tile_n": (128, 768),
    }
    assert names(by_tuple) == {"blocks[0]": (512, 1024), "blocks[1]": (256, 512), "blocks[2]": (128, 768)}
    # `passes` and the flag are not sizes of blocks. A block of 256 is along m and along k: the larger one counts.
    assert names(by_record) == {"sizes.rows": (256, 1024), "sizes.columns": (128, 768)}


def test_sizes_are_bound_where_they_belong() -> None:
    rows = TileParameter(name="sizes", part="rows", value=256, largest=1024)
    second = TileParameter(name="blocks", part=1, value=256, largest=512)
    assert with_sizes(by_record, {rows: 512}) == {"sizes": Sizes(rows=512)}
    assert with_sizes(by_tuple, {second: 512}) == {"blocks": (512, 512, 128)}
    assert call_of(WithKeywords(by_tuple, {second: 512}), *ARGS).grid == (2, 6, 1)


def test_sizes_to_try_stay_inside_of_the_arrays() -> None:
    tile = TileParameter(name="tile_k", part=None, value=256, largest=512)
    assert tile_sizes([tile]) == [((tile, 64),), ((tile, 128),), ((tile, 512),)]
    odd = TileParameter(name="tile_n", part=None, value=256, largest=700)
    assert [sizes[0][1] for sizes in tile_sizes([odd])] == [64, 128, 512, 700]
    pairs = tile_sizes([tile, odd])
    assert len(pairs) == 3 + 4 + 3 * 4
    many = [TileParameter(name=f"t{at}", part=None, value=256, largest=512) for at in range(5)]
    assert len(tile_sizes(many)) == 5 * 3 + 10 * 9  # one and two at a time


SQUARE = (BF16(512, 512), BF16(512, 512))


def small(lhs: Any, rhs: Any, **options: Any) -> Any:
    return product(lhs, rhs, tile_m=256, tile_k=256, tile_n=256, **options)


def contracting(left: int, right: int, precision: Any = None) -> Any:
    def kernel(lhs_vmem, rhs_vmem, out_vmem):
        dimensions = (((left,), (right,)), ((), ()))
        lhs, rhs = lhs_vmem[...], rhs_vmem[...]
        out_vmem[...] = jax.lax.dot_general(
            lhs, rhs, dimensions, precision=precision, preferred_element_type=jnp.float32
        )

    def launched(lhs: Any, rhs: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=shape(jnp.float32, 512, 512))(lhs, rhs)

    return launched


@pytest.mark.parametrize(("left", "right", "words"), [(1, 0, "lhs @ rhs"), (1, 1, "lhs @ rhsᵀ"), (0, 0, "lhsᵀ @ rhs")])
def test_square_products_are_taken_as_the_kernel_contracts_them(left: int, right: int, words: str) -> None:
    found = equivalent_matmul(SQUARE, analysed(contracting(left, right), *SQUARE))
    assert found is not None
    assert found.words == words
    lhs, rhs = np.random.default_rng(0).integers(-4, 5, (2, 512, 512)).astype(np.float32)
    expected = (lhs if left else lhs.T).astype(np.float64) @ (rhs.T if right else rhs)
    np.testing.assert_array_equal(found.by_xla(lhs, rhs), expected)
    # What is advised is what was simulated.
    (saving,) = replacement_savings([Program(label="XLA", role="xla", time_us=1.0)], 2.0, found)
    advised = eval(saving.change, {"jnp": jnp, "lhs": lhs, "rhs": rhs})
    np.testing.assert_array_equal(advised, expected)
    flagged = Program(label="XLA with 64 MiB of scoped VMEM", role="xla", time_us=1.0)
    (saving,) = replacement_savings([flagged], 2.0, found)
    assert callable(eval(saving.change, {"jax": jax, "jnp": jnp}))
    assert "'xla_tpu_scoped_vmem_limit_kib': '65536'" in saving.change
    (saving,) = replacement_savings([Program(label="systolic.matmul", role="other", time_us=1.0)], 2.0, found)
    assert ("transpose_lhs=True" in saving.change, "transpose_rhs=True" in saving.change) == (not left, bool(right))


def test_xla_multiplies_as_exactly_as_the_kernel() -> None:
    found = equivalent_matmul(SQUARE, analysed(contracting(1, 0, jax.lax.Precision.HIGHEST), *SQUARE))
    assert found is not None
    traced = str(jax.make_jaxpr(found.by_xla)(*SQUARE))
    assert "HIGHEST" in traced.upper()


def test_what_is_no_product_of_two_matrices_is_not_taken_for_one() -> None:
    def repeated(lhs: Any, rhs: Any) -> Any:
        return jax.lax.scan(lambda x, _: (small(x, rhs), None), lhs, None, length=4)[0]

    found = analysed(repeated, *SQUARE)
    assert found.flops == 4 * 2 * 512**3
    assert equivalent_matmul(SQUARE, found) is None
    pair = {"lhs": SQUARE[0], "rhs": SQUARE[1]}
    assert equivalent_matmul((pair,), analysed(lambda both: small(both["lhs"], both["rhs"]), pair)) is None


def test_the_peak_is_that_of_what_xla_multiplies() -> None:
    def whole(lhs: Any, rhs: Any) -> Any:
        return jnp.dot(lhs, rhs, preferred_element_type=jnp.int32)

    assert analysed(whole, shape(jnp.int8, 512, 512), shape(jnp.int8, 512, 512)).dtype == "int8"


def test_a_grid_of_no_steps_is_an_error_and_no_crash() -> None:
    def kernel(x_vmem, out_vmem):
        out_vmem[...] += x_vmem[...]

    def launched(x: Any) -> Any:
        whole = pl.BlockSpec((1024, 512), lambda i, j: (i, 0))
        return pl.pallas_call(kernel, grid=(0, 2), in_specs=[whole], out_specs=whole, out_shape=x)(x)

    found = analysed(launched, shape(jnp.float32, 512, 512))
    assert "empty-grid" in {each.rule for each in found.errors}


def test_sizes_that_change_the_result_are_no_tiles() -> None:
    def leading(x: Any, *, columns: int = 256) -> Any:
        def kernel(x_vmem, out_vmem):
            out_vmem[...] = x_vmem[...]

        block = pl.BlockSpec((128, columns), lambda i: (i, 0))
        out = jax.ShapeDtypeStruct((512, columns), x.dtype)
        return pl.pallas_call(kernel, grid=(4,), in_specs=[block], out_specs=block, out_shape=out)(x)

    x = shape(jnp.float32, 512, 512)
    now = analysed(leading, x)
    (columns,) = (each for each in now.parameters if each.name == "columns")
    other = analysed(WithKeywords(leading, {columns: 128}), x)
    assert tile_candidate(((columns, 128),), other, now, chip("v5e")) is None


def test_hbm_of_an_idle_core_is_not_counted() -> None:
    one = a_run()
    (core,) = one.cores
    op = max(core.ops, key=lambda each: each.cycles)
    waiting = dataclasses.replace(op, matrix_stall_cycles=0, copy_stall_cycles=op.cycles // 2, matrix_busy_cycles=0)
    busy = dataclasses.replace(core, ops=(waiting,))
    idle = dataclasses.replace(core, ops=(), cycles=0)
    alone = bottleneck(dataclasses.replace(one, cores=(busy,)), (), ())
    assert "HBM" in alone.words
    assert bottleneck(dataclasses.replace(one, cores=(busy, idle)), (), ()) == alone


def test_what_hardly_runs_is_not_limited_by_the_matrix_unit() -> None:
    one = a_run()
    (core,) = one.cores
    op = max(core.ops, key=lambda each: each.cycles)
    nothing = dataclasses.replace(
        op, matrix_busy_cycles=0, matrix_stall_cycles=0, copy_stall_cycles=0, overhead_cycles=0, issued={}
    )
    still = dataclasses.replace(
        core, ops=(nothing,), copy_stall_cycles=0, copy_overhead_cycles=0, matrix_stall_cycles=0
    )
    found = bottleneck(dataclasses.replace(one, cores=(still,)), (), ())
    assert found.cause == "nothing"
    assert "matrix" not in found.words


def test_the_largest_wait_is_named_and_small_steps_with_their_number() -> None:
    one = a_run()
    (core,) = one.cores
    op = max(core.ops, key=lambda each: each.cycles)
    small = dataclasses.replace(op, matrix_busy_cycles=0, is_pallas=True)
    waits = {"copy_stall_cycles": core.cycles // 4, "copy_overhead_cycles": core.cycles // 3, "matrix_stall_cycles": 0}
    run = dataclasses.replace(one, cores=(dataclasses.replace(core, ops=(small,), **waits),))
    assert "2,048" in bottleneck(run, (), (), steps=2048).words
    assert bottleneck(run, (), (), steps=2048).cause == "small steps"
    assert bottleneck(run, (), ()).cause == "starting copies"
    assert f"{run.stalls['overhead']:.0%}" in bottleneck(run, (), ()).words
    fewer = dataclasses.replace(run.cores[0], copy_overhead_cycles=core.cycles // 5)
    assert bottleneck(dataclasses.replace(run, cores=(fewer,)), (), ()).cause in ("waits for copies", "HBM bandwidth")
    # A step that is shorter than a copy does not hide it.
    slow = dataclasses.replace(run, cores=(fewer,), hbm_bytes_per_cycle=run.hbm_bytes_per_cycle * 1e3)
    assert bottleneck(slow, (), (), steps=10).cause == "waits for copies"
    assert bottleneck(slow, (), (), steps=10**6).cause == "small steps"


def test_a_steady_step_is_one_whose_copies_are_kept() -> None:
    # Ten spans of each kind from either end: of the rounds 0 to 9, but of their copies only those of the first three.
    def spans(kind: Literal["round", "copy"], per_round: int) -> list[Span]:
        times = [at * 100 + part * 10 for at in range(100) for part in range(per_round)]
        kept = [*times[:10], *times[-10:]]
        length = 100 if kind == "round" else 10
        return [Span(kind=kind, begin_cycles=t, end_cycles=t + length, label="op", amount=64) for t in kept]

    core = CoreRun(
        core=0,
        cycles=10_000,
        ops=(OpRun(name="op", scope="", calls=1, begin_cycles=0, end_cycles=10_000, cycles=10_000),),
        copy_stall_cycles=0,
        copy_overhead_cycles=0,
        matrix_stall_cycles=0,
        matrix_busy_cycles=0,
        hbm_read_bytes=0,
        hbm_written_bytes=0,
        copies=300,
        spans=tuple(sorted(spans("round", 1) + spans("copy", 3), key=lambda span: span.begin_cycles)),
        spans_left_out=360,
    )
    run = SimulatedRun(chip="v6e", clock_hz=1e9, cores=(core,), prefetch_cycles=0, matrix_units=2, bundles=1)
    steady = next(each for each in timeline_windows(run) if each.title == "one steady step")
    assert steady.begin_us == pytest.approx(0.2)  # the third round, the last one whose copies are all there
    assert "3 copies" in steady.words
