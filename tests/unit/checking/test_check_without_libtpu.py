"""Reading kernels where there is no TPU compiler: they are traced for a device that JAX makes up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.checking import static
from systolic.chips import chip
from systolic.timing import Call

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)


def kernel(x: jax.Array) -> jax.Array:
    # It asks for the chip while it is traced, as libraries of kernels do.
    rows = 8 if pltpu.get_tpu_info().num_lanes == 128 else 16

    def body(x_vmem, out_vmem):
        out_vmem[...] += x_vmem[...]

    block = pl.BlockSpec((rows, 128), lambda i: (i, 0))
    return pl.pallas_call(body, out_shape=X, grid=(64 // rows,), in_specs=[block], out_specs=block)(x)


def test_rules_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "compiler_is_there", lambda: False)
    monkeypatch.setattr(static, "traced_jaxpr", None)
    found = static.read_kernels(Call.described(kernel, (X,), chip("v6e")))
    assert [each.grid for each in found.kernels] == [(8,)]
    assert "uninitialised" in {each.rule for each in found.findings if each.grade == "error"}


def test_what_raises_while_it_is_traced_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "compiler_is_there", lambda: False)
    (found,) = static.read_kernels(Call.described(lambda x: x @ x, (X,), chip("v6e"))).findings
    assert found.rule == "trace"
