"""Faults that only values show, found without a reference; and published kernels against references as users write."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check_runs import array, errors, ran
from checked import unreferenced, unreferenced_blocks
from checked.public.plain import attention_plain
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

FAULTS = {case.name: case for case in unreferenced.FAULTS if "precision" not in case.rules}  # static rules find these
BLOCK_FAULTS = {case.name: case for case in unreferenced_blocks.FAULTS}
# Block masks are meant somewhere: nothing tells these from such a mask.
NOT_FOUND = ("mask without the block's start", "mask of the diagonal block forgotten")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in FAULTS if not any(words in name for words in NOT_FOUND)])
def test_a_fault_is_found_without_a_reference(name: str) -> None:
    case = FAULTS[name]
    rules = {finding.rule for finding in ran(case.fn, *case.args).findings if finding.grade != "note"}
    assert rules & case.rules


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("split_product: parts in bfloat16", "the results are those of lhs @ rhs, but"),
        ("biased_product: bias of the row's block", "results are those of jax.nn.relu(lhs @ rhs + bias), and"),
        ("padded_largest: padded with zeros", "of negative numbers, "),
        ("padded_attention: padded keys not masked", "which also counts 56 keys of zeros that fill up the last block"),
        ("prefix_sums: carry without the last column", "some results are those of x.cumsum(1), and"),
    ],
)
def test_a_known_function_shows_the_fault(name: str, said: str) -> None:
    case = BLOCK_FAULTS[f"{name}, no reference"]
    warnings = [finding for finding in ran(case.fn, *case.args).findings if finding.grade == "warning"]
    assert [finding.rule for finding in warnings if said in finding.value and finding.rule in case.rules]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", unreferenced_blocks.SOUND, ids=lambda case: case.name)
def test_a_sound_function_of_blocks_is_not_suspected(case: unreferenced.Case) -> None:
    findings = ran(case.fn, *case.args).findings
    # Scratch memory that is carried on is a warning: a prefix sum does it on purpose.
    assert not [finding for finding in findings if finding.grade != "note" and finding.rule != "uninitialised"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", unreferenced.SOUND, ids=lambda case: case.name)
def test_a_sound_function_is_not_suspected(case: unreferenced.Case) -> None:
    assert not [finding for finding in ran(case.fn, *case.args).findings if finding.grade != "note"]


@pytest.mark.exhaustive
def test_megablox_against_a_reference_that_names_float32() -> None:
    # The reference's own sums would be as inexact as the kernel's: both are off on numbers around 1000.
    sizes = np.array([60, 0, 68], np.int32)
    grouped = functools.partial(gmm, preferred_element_type=jnp.float32, tiling=(128, 128, 128))
    plain = functools.partial(jax.lax.ragged_dot, preferred_element_type=jnp.float32)
    operands = array(128, 256, dtype="float32"), array(3, 256, 128, dtype="float32")
    outcome = ran(grouped, *operands, sizes, reference=plain)
    assert not errors(outcome)
    assert "offset" in outcome.summary.data


@pytest.mark.exhaustive
def test_the_gradient_of_flash_attention() -> None:
    def gradient(attention):
        return jax.grad(lambda *heads: (attention(*heads).astype(jnp.float32) ** 2).sum(), (0, 1, 2))

    kernel = functools.partial(flash.flash_attention, causal=True, sm_scale=0.1)
    plain = functools.partial(attention_plain, seen="causal", scale=0.1)
    heads = (array(1, 1, 128, 128, dtype="float32"),) * 3
    outcome = ran(gradient(kernel), *heads, reference=gradient(plain))
    assert not errors(outcome)
    assert outcome.summary.compared


def test_a_kernel_under_vmap_with_semantics_of_its_grid() -> None:
    def doubled(x: jax.Array) -> jax.Array:
        def body(x_vmem, out_vmem):
            out_vmem[...] = x_vmem[...] * 2

        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(2,),
            in_specs=[block],
            out_specs=block,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )(x)

    outcome = ran(jax.vmap(doubled), array(3, 16, 128, dtype="float32"), reference=lambda x: x * 2)
    assert not errors(outcome)
    assert outcome.summary.compared


def test_a_copy_of_no_rows() -> None:
    def copied(x: jax.Array, rows: jax.Array) -> jax.Array:
        def body(rows_smem, x_hbm, out_hbm, sem):
            part = pl.ds(0, rows_smem[0])
            pltpu.make_async_copy(x_hbm, out_hbm, sem).start()
            pltpu.make_async_copy(x_hbm, out_hbm, sem).wait()
            pltpu.make_async_copy(x_hbm.at[part], out_hbm.at[part], sem).wait()

        whole = pl.BlockSpec(memory_space=pl.ANY)
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(), in_specs=[whole], out_specs=whole, scratch_shapes=[pltpu.SemaphoreType.DMA]
        )
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid_spec=grid)(rows, x)

    outcome = ran(copied, array(16, 128, dtype="float32"), np.array([0], np.int32), reference=lambda x, rows: x)
    assert not errors(outcome)
    assert outcome.summary.compared


def test_what_is_left_out_is_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systolic.checking.runs._BUDGET_S", 0.0)
    case = unreferenced.SOUND[0]
    outcome = ran(case.fn, *case.args, seeds=(0, 1, 2))
    (said,) = [finding.value for finding in outcome.findings if finding.rule == "run"]
    assert said.startswith("3 of 5 orders of copies and steps, and inputs of 4 kinds")
    assert outcome.summary.data == ("normal",)
