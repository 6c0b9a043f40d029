"""The rules on grid and blocks: what the compiler was seen to refuse is an error, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.analysis import kernel_calls
from systolic.checking.finding import Finding
from systolic.checking.rules.blocks import block_findings
from systolic.chips import chip

V5E = chip("v5e")


def copy_findings(
    shape: tuple[int, ...],
    block: tuple[Any, ...],
    *,
    dtype: str = "float32",
    grid: tuple[int, ...] = (2,),
    index_map: Callable[..., Any] | None = None,
    **options: Any,
) -> list[Finding]:
    """Findings of a kernel that cuts its one input as told. What it computes does not matter."""

    def body(in_vmem, out_vmem):
        out_vmem[...] = jnp.zeros_like(out_vmem)

    spec = pl.BlockSpec(block, index_map or (lambda *at: (0,) * len(shape)), **options)

    def launch(array):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((16, 128), jnp.float32),
            grid=grid,
            in_specs=[spec],
            out_specs=pl.BlockSpec((8, 128), lambda *at: (at[0], 0)),
        )(array)

    jaxpr = jax.make_jaxpr(launch)(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))
    (call,) = kernel_calls(jaxpr)
    return block_findings(call)


def broken(*args: Any, **options: Any) -> dict[str, str]:
    return {found.rule: found.grade for found in copy_findings(*args, **options)}


@pytest.mark.parametrize(
    ("shape", "block", "dtype", "legal"),
    [
        ((256, 256), (8, 128), "float32", True),
        ((256, 256), (12, 128), "float32", False),
        ((12, 256), (12, 128), "float32", True),
        ((256, 256), (64, 64), "float32", False),
        ((256, 64), (64, 64), "float32", True),
        ((256, 256), (512, 384), "float32", True),  # larger than the array
        ((250, 250), (8, 128), "float32", True),  # dividing nothing
        ((256, 256), (8, 128), "int8", False),
        ((256, 256), (32, 128), "int8", True),
        ((250, 256), (8, 128), "int8", True),  # 250 rows are not stored in tiles of 32
        ((16, 256), (16, 128), "int8", True),
        ((256, 256), (16, 128), "float8_e5m2", False),
        ((128, 256), (32, 128), "int4", False),
        ((128, 256), (64, 128), "int4", True),
        ((96, 256), (32, 128), "int4", True),
        ((3, 256, 256), (1, 8, 128), "float32", True),
        ((3, 256, 256), (2, 8, 128), "float32", True),
        ((3, 256, 256), (3, 4, 128), "float32", False),
        ((3, 256, 256), (None, 8, 128), "float32", True),
        ((3, 256), (None, 128), "float32", False),
        ((1, 256), (None, 128), "float32", True),
        ((256, 256), (pl.Element(12), pl.Element(128)), "float32", False),
        ((256, 256), (pl.Element(16), pl.Element(128)), "float32", True),
        ((4096,), (1024,), "float32", True),
        ((4096,), (3072,), "float32", True),
        ((4096,), (256,), "float32", True),
        ((4096,), (384,), "float32", False),
        ((384,), (384,), "float32", True),
        ((4096,), (128,), "float32", True),
        ((4096,), (128,), "bfloat16", False),
        ((4096,), (64,), "float32", False),
    ],
)
def test_alignment(shape: tuple[int, ...], block: tuple[Any, ...], dtype: str, legal: bool) -> None:
    assert ("block-alignment" not in broken(shape, block, dtype=dtype)) is legal


def test_a_finding_says_what_to_use() -> None:
    (found,) = copy_findings((256, 256), (20, 128))
    assert found.rule == "block-alignment"
    assert "in_vmem" in found.value
    assert "20 rows of 256" in found.value
    assert found.fix == "use 16 or 24 or all 256"
    assert "test_check_block_rules.py" in found.where


def test_narrow_types_want_full_registers() -> None:
    assert broken((256, 256), (8, 128), dtype="bfloat16") == {"half-registers": "warning"}
    assert broken((256, 256), (16, 128), dtype="bfloat16") == {}
    assert broken((8, 256), (8, 128), dtype="bfloat16") == {}  # there are no more rows
    assert broken((250, 256), (8, 128), dtype="int8") == {"half-registers": "warning"}


@pytest.mark.parametrize(("count", "refused"), [(1, False), (2, False), (3, True)])
def test_buffering(count: int, refused: bool) -> None:
    found = broken((256, 256), (8, 128), index_map=lambda i: (i, 0), pipeline_mode=pl.Buffered(count))
    assert found == ({"buffering": "error"} if refused else {})


def test_a_whole_array_has_one_buffer_whatever_is_asked_for() -> None:
    assert broken((8, 128), (8, 128), pipeline_mode=pl.Buffered(3)) == {}


def test_a_grid_without_steps() -> None:
    (found,) = copy_findings((256, 256), (8, 128), grid=(2, 0))
    assert (found.rule, found.grade) == ("empty-grid", "error")
    assert "(2, 0)" in found.value


def test_blocks_by_element_and_by_block_do_not_mix() -> None:
    assert broken((256, 256), (pl.Element(8), 128)) == {"block-kind": "error"}
    assert broken((3, 256, 256), (None, pl.Element(8), pl.Element(128))) == {}


def test_scalars_are_whole_or_aligned() -> None:
    assert broken((100, 3), (100, 3), memory_space=pltpu.SMEM) == {}
    assert broken((100, 3), (1, 3), memory_space=pltpu.SMEM) == {"block-alignment": "error"}


def test_what_stays_in_hbm_is_not_cut() -> None:
    assert broken((256, 256), (256, 256), memory_space=pl.ANY) == {}
    assert broken((256, 256), (8, 128), memory_space=pl.ANY) == {"hbm-block": "error"}


def element_rule(index_map: Callable[..., Any], dtype: str = "float32") -> dict[str, str]:
    return broken((256, 256), (pl.Element(32), pl.Element(128)), index_map=index_map, dtype=dtype)


@pytest.mark.parametrize(
    ("index_map", "legal"),
    [
        (lambda i: (i * 8, 0), True),
        (lambda i: (i * 4 * 2, i * 128), True),
        (lambda i: ((i + 1) * 8, 0), True),
        (lambda i: (i // 2 * 8, 0), True),
        (lambda i: (jnp.where(i > 1, 8, 16), 0), True),
        (lambda i: (pl.multiple_of(i * 3, 8), 0), True),
        (lambda i: (8, 128), True),
        (lambda i: (i, 0), False),
        (lambda i: (i * 8, i), False),
        (lambda i: (4, 0), False),
        (lambda i: (i * 8 + 8, 0), False),  # true, but the compiler does not add
        (lambda i: (jnp.minimum(i * 8, 64), 0), False),
    ],
)
def test_elements_have_to_begin_at_tiles(index_map: Callable[..., Any], legal: bool) -> None:
    assert element_rule(index_map) == ({} if legal else {"block-alignment": "error"})


def test_tiles_of_narrow_types_are_higher() -> None:
    assert element_rule(lambda i: (i * 8, 0), "bfloat16") == {}
    assert element_rule(lambda i: (i * 8, 0), "int8") == {"block-alignment": "error"}
    assert element_rule(lambda i: (i * 32, 0), "int8") == {}


def test_padding_before_the_beginning() -> None:
    found = broken((256, 256), (pl.Element(32, (8, 0)), pl.Element(128)))
    assert found == {"block-kind": "error"}
    assert broken((250, 256), (pl.Element(32, (0, 8)), pl.Element(128))) == {}


def test_looking_ahead() -> None:
    ahead = pl.Buffered(2, use_lookahead=True)
    assert broken((256, 256), (8, 128), index_map=lambda i: (i, 0), pipeline_mode=ahead) == {"buffering": "error"}
