"""Reads of unwritten memory, found in the text of a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

from systolic.analysis import KernelCall, kernel_calls
from systolic.checking.finding import Finding
from systolic.checking.interpreting import traced_as_on
from systolic.checking.rules.body import body_findings
from systolic.chips import chip
from systolic.compiler.named import named_function

EXAMPLES = Path(__file__).parents[3] / "examples"


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def calls_of(fn: Callable[..., Any], *args: Any) -> list[KernelCall]:
    with traced_as_on(chip("v5e")):
        return kernel_calls(jax.jit(fn).trace(*args).jaxpr)


def example(text: str) -> Callable[..., Any]:
    return named_function(f"{EXAMPLES}/{text}")


def found(
    body: Callable[..., None],
    grid: tuple[int, ...] = (2, 2, 2),
    scratch: Sequence[Any] = (),
    aliases: dict[int, int] | None = None,
) -> list[Finding]:
    """Return the findings on a body with one input and one float32 output whose block follows the first two axes."""

    def launched(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((16, 256), jnp.float32),
            grid=grid,
            in_specs=[pl.BlockSpec((8, 128), lambda i, j, kk: (i, j))],
            out_specs=pl.BlockSpec((8, 128), lambda i, j, kk: (i, j)),
            scratch_shapes=scratch,
            input_output_aliases=aliases or {},
        )(x)

    (call,) = calls_of(launched, jax.ShapeDtypeStruct((16, 256), jnp.float32))
    return body_findings(call)


SUM = (pltpu.VMEM((8, 128), jnp.float32),)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_scratch_accumulator_that_nobody_clears_is_found_at_its_line() -> None:
    faulty = example("planted_faults.py:uninitialised_accumulator")
    (call,) = calls_of(faulty, bf16(1024, 1024), bf16(1024, 1024))
    (finding,) = body_findings(call)
    text = (EXAMPLES / "planted_faults.py").read_text().splitlines()
    line = int(finding.where.split(":")[1].split()[0])
    assert finding.rule == "uninitialised"
    assert finding.grade == "error"
    assert finding.value.startswith("acc_vmem: read at step (0, 0, 0)")
    assert "acc_vmem[...] +=" in text[line - 1]
    assert "pl.program_id(2) == 0" in finding.fix


def test_an_output_that_nobody_clears() -> None:
    def body(x_vmem, out_vmem):
        out_vmem[...] += x_vmem[...]

    (finding,) = found(body)
    assert finding.value.startswith("out_vmem: read at step (0, 0, 0)")
    assert "not copied in" in finding.limit


def test_an_output_that_is_cleared_once_for_all_of_its_blocks() -> None:
    def body(x_vmem, out_vmem):
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0) & (pl.program_id(2) == 0))
        def _():
            out_vmem[...] = jnp.zeros_like(out_vmem)

        out_vmem[...] += x_vmem[...]

    (finding,) = found(body)
    assert finding.value.startswith("out_vmem: read at step (1, 0, 0)")


def test_a_sum_that_is_cleared_at_the_last_step() -> None:
    def body(x_vmem, out_vmem, acc_vmem):
        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] = acc_vmem[...] + x_vmem[...]
        out_vmem[...] = acc_vmem[...]

    (finding,) = found(body, scratch=SUM)
    assert finding.value.startswith("acc_vmem")
    assert found(body, grid=(2, 2, 1), scratch=SUM) == []


def test_a_read_in_the_first_round_of_a_loop() -> None:
    def body(x_vmem, out_vmem, acc_vmem):
        def add(i, carry):
            acc_vmem[...] += x_vmem[...] * i
            return carry

        lax.fori_loop(0, 3, add, 0)
        out_vmem[...] = acc_vmem[...]

    (finding,) = found(body, scratch=SUM)
    assert finding.value.startswith("acc_vmem")


# --- no faults -------------------------------------------------------------------------------------------------------


def test_a_choice_between_zero_and_what_is_there() -> None:
    def body(x_vmem, out_vmem, acc_vmem):
        before = jnp.where(pl.program_id(2) == 0, jnp.zeros_like(acc_vmem), acc_vmem[...])
        acc_vmem[...] = before + x_vmem[...]
        out_vmem[...] = acc_vmem[...]

    assert found(body, scratch=SUM) == []


def test_a_read_for_its_shape_only() -> None:
    def body(x_vmem, out_vmem, acc_vmem):
        acc_vmem[...] = jnp.zeros_like(acc_vmem[...])
        acc_vmem[...] += x_vmem[...]
        out_vmem[...] = acc_vmem[...]

    assert found(body, scratch=SUM) == []


def test_an_output_in_place_of_an_input() -> None:
    def body(x_vmem, out_vmem):
        out_vmem[...] += x_vmem[...]

    assert found(body, aliases={0: 0}) == []


def test_a_sum_that_is_cleared_in_the_first_round_of_a_loop() -> None:
    def body(x_vmem, out_vmem, acc_vmem):
        def add(i, carry):
            @pl.when(i == 0)
            def _():
                acc_vmem[...] = jnp.zeros_like(acc_vmem)

            acc_vmem[...] += x_vmem[...]
            return carry

        lax.fori_loop(0, 3, add, 0)
        out_vmem[...] = acc_vmem[...]

    assert found(body, scratch=SUM) == []


def test_a_condition_on_values_is_given_the_benefit_of_the_doubt() -> None:
    def body(x_vmem, out_vmem, acc_vmem):
        @pl.when(x_vmem[0, 0] > 0)
        def _():
            acc_vmem[...] = jnp.zeros_like(acc_vmem)

        acc_vmem[...] += x_vmem[...]
        out_vmem[...] = acc_vmem[...]

    assert found(body, scratch=SUM) == []


def test_a_copy_fills_a_buffer() -> None:
    def body(x_vmem, out_vmem, other_vmem, sem):
        pltpu.sync_copy(x_vmem, other_vmem)
        out_vmem[...] = other_vmem[...] * 2
        del sem

    assert found(body, scratch=(*SUM, pltpu.SemaphoreType.DMA)) == []


def splash(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
    mask = splash_attention_mask.MultiHeadMask(
        [splash_attention_mask.CausalMask((q.shape[1], k.shape[1]))] * q.shape[0]
    )
    return splash_attention_kernel.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1)(q, k, v)


SQUARES = (bf16(2048, 2048),) * 2
HEADS = (bf16(1, 2, 1024, 128),) * 3


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        *((f"products.py:{name}", SQUARES) for name in ("v1", "v2", "v3", "v4", "v5", "jax_example", "mine")),
        ("products.py:mine", (bf16(1000, 3000), bf16(3000, 700))),
        ("products.py:grouped", (bf16(2048, 2048), bf16(4, 2048, 2048), np.array([1000, 0, 48, 1000], np.int32))),
        ("products.py:attention", HEADS),
        pytest.param(functools.partial(flash.flash_attention, causal=False), HEADS, id="flash_attention"),
        pytest.param(splash, (bf16(2, 1024, 128),) * 3, id="splash_attention"),
        pytest.param(
            functools.partial(paged_attention, pages_per_compute_block=4),
            (
                bf16(8, 16, 128),
                *(bf16(16, 256, 16, 128),) * 2,
                np.full(8, 100, np.int32),
                np.arange(256, dtype=np.int32).reshape(8, 32),
            ),
            id="paged_attention",
        ),
        ("planted_faults.py:dropped_tail", SQUARES),
        ("planted_faults.py:racing_copy", SQUARES),
    ],
    ids=str,
)
def test_published_kernels_clear_what_they_read(fn: Any, args: tuple[Any, ...]) -> None:
    calls = calls_of(example(fn) if isinstance(fn, str) else fn, *args)
    assert calls
    assert [finding for call in calls for finding in body_findings(call)] == []
