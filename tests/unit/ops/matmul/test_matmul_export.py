"""`systolic.matmul` lowered and exported for a TPU on a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compilation import quick_flags

import systolic
from systolic.spec import MatmulSpec, NoKernelWarning, SpecError

CHIPS = ["v4", "v5e", "v5p", "v6e", "v7x"]
F32, BF16, INT8 = jnp.float32, jnp.bfloat16, jnp.int8
# With the pipeline that v6e takes: m, k, n.
SIZES = {(256, 256, 256): "auto", (4096, 4096, 4096): "manual", (1000, 999, 1001): "auto"}


def kernels(exported: jax.export.Exported) -> int:
    return exported.mlir_module().count("tpu_custom_call")


def shapes(*each: tuple[Any, ...], dtype: Any = BF16) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in each]


def exported(fn: Callable[..., Any], *arguments: Any, platforms: tuple[str, ...] = ("tpu",)) -> jax.export.Exported:
    return jax.export.export(jax.jit(fn), platforms=platforms)(*arguments)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("size", SIZES)
def test_a_module_holds_the_kernel(size: tuple[int, int, int], chip: str) -> None:
    m, k, n = size
    if chip == "v6e":
        assert systolic.plan(MatmulSpec.of(*size, "bfloat16"), chip).config.pipeline == SIZES[size]
    module = exported(lambda lhs, rhs: systolic.matmul(lhs, rhs, chip=chip), *shapes((m, k), (k, n)))
    assert kernels(module) == 1
    assert [(out.shape, out.dtype) for out in module.out_avals] == [((m, n), BF16)]


FORMS: dict[str, tuple[Callable[..., Any], int]] = {
    "everything fused": (
        lambda lhs, rhs: systolic.matmul(
            lhs, rhs, chip="v6e", activation="gelu", bias=jnp.ones(512), residual=lhs, out_scale=0.5, lhs_fn=jnp.tanh
        ), 1),
    "an operation that asks for the chip": (
        lambda lhs, rhs: systolic.matmul(lhs, rhs, chip="v6e", activation=lambda x: jnp.sign(x) * x), 1),
    "no other implementation": (
        lambda lhs, rhs: systolic.matmul(lhs, rhs, chip="v6e", implementation="pallas"), 1),
    "gradient": (
        jax.grad(lambda *both: systolic.matmul(*both, chip="v6e", activation="relu").sum().astype(F32), (0, 1)), 3),
    "gradient of one operand": (jax.grad(lambda lhs, rhs: systolic.matmul(lhs, rhs, chip="v6e").sum().astype(F32)), 1),
    "forward mode": (
        lambda lhs, rhs: jax.jvp(lambda *both: systolic.matmul(*both, chip="v6e"), (lhs, rhs), (lhs, rhs)), 3),
    "batch": (lambda lhs, rhs: jax.vmap(lambda rhs: systolic.matmul(lhs, rhs, chip="v6e"))(jnp.stack([rhs, rhs])), 1),
    "under 64 bits": (lambda lhs, rhs: systolic.matmul(lhs, rhs, chip="v6e", activation="silu"), 1),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    fn, count = FORMS[form]
    with jax.enable_x64(form == "under 64 bits"):
        assert kernels(exported(fn, *shapes((512, 512), (512, 512)))) == count


def test_a_serialized_module_is_the_same() -> None:
    pytest.importorskip("flatbuffers", reason="jax.export serializes with flatbuffers")
    module = exported(lambda lhs, rhs: systolic.matmul(lhs, rhs, chip="v5e"), *shapes((512, 512), (512, 512)))
    again = jax.export.deserialize(module.serialize())
    assert again.mlir_module() == module.mlir_module()
    assert again.platforms == ("tpu",)
    assert [(out.shape, out.dtype) for out in again.out_avals] == [((512, 512), BF16)]


SHARDED = """
import jax, jax.export, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import systolic

mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
for size in ((2048, 512, 512), (1000, 999, 1001)):
    m, k, n = size
    for chip in ("v5e", "v7x"):
        rows = jax.shard_map(
            lambda lhs, rhs: systolic.matmul(lhs, rhs, chip=chip, activation="relu"),
            mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
        slopes = jax.grad(lambda *both: rows(*both).astype(jnp.float32).sum(), argnums=(0, 1))
        for fn, count in ((rows, 1), (slopes, 3)):
            shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, k), (k, n))]
            module = jax.export.export(jax.jit(fn), platforms=["tpu"])(*shapes)
            assert module.mlir_module().count("tpu_custom_call") == count, (size, chip, count)
"""


@pytest.mark.exhaustive
def test_shard_map_over_devices_of_a_cpu(tmp_path: Path) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    flags = f"{quick_flags()} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


# --- programs without a kernel ---------------------------------------------------------------------------------------


def test_a_program_for_a_tpu_without_a_kernel_warns() -> None:
    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return systolic.matmul(lhs, rhs)

    with pytest.warns(
        NoKernelWarning, match=r'for a TPU: it was traced where no TPU .*chip="v6e".*implementation="xla"'
    ):
        assert kernels(exported(product, *shapes((512, 512), (512, 512)))) == 0
    with pytest.warns(NoKernelWarning):
        jax.jit(jax.grad(lambda *both: product(*both).sum())).trace(*shapes((64, 64), (64, 64), dtype=F32)).lower(
            lowering_platforms=("tpu",)
        )


def test_no_warning_where_xla_was_asked_for_or_the_program_is_not_for_a_tpu() -> None:
    operands = shapes((512, 512), (512, 512))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exported(lambda lhs, rhs: systolic.matmul(lhs, rhs, implementation="xla"), *operands)
        exported(lambda lhs, rhs: systolic.matmul(lhs, rhs, chip="v6e"), *operands)
        exported(systolic.matmul, *operands, platforms=("cpu",))
        jax.vmap(systolic.matmul)(jnp.ones((3, 8, 8)), jnp.ones((3, 8, 8)))


def symbolic(text: str = "b, m") -> Any:
    return jax.export.symbolic_shape(text)


def test_symbolic_sizes_go_to_xla() -> None:
    batch, rows = symbolic()

    def product(lhs: jax.Array, rhs: jax.Array, bias: jax.Array, *, chip: str | None = None) -> jax.Array:
        return systolic.matmul(lhs, rhs, bias=bias, activation="silu", lhs_fn=jnp.sin, out_scale=2.0, chip=chip)

    operands = shapes((batch, rows, 16), (16, 24), (24,), dtype=F32)
    random = np.random.default_rng(0)
    values = [jnp.asarray(random.standard_normal(shape), F32) for shape in ((3, 5, 16), (16, 24), (24,))]
    module = exported(product, *operands, platforms=("cpu",))
    np.testing.assert_allclose(module.call(*values), product(*values), rtol=1e-5, atol=1e-5)

    def loss(*arrays: jax.Array) -> jax.Array:
        return (product(*arrays) ** 2).sum()

    slopes = jax.grad(loss, argnums=(0, 1, 2))
    for one, other in zip(exported(slopes, *operands, platforms=("cpu",)).call(*values), slopes(*values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    with pytest.warns(
        NoKernelWarning, match=r"sizes that are numbers, and operands are \[b, m, 16\] and \[1, 16, 24\]"
    ):
        assert kernels(exported(lambda *arrays: product(*arrays, chip="v6e"), *operands)) == 0


@pytest.mark.parametrize("implementation", ["pallas", "interpret"])
def test_a_kernel_of_symbolic_sizes_is_refused(implementation: Any) -> None:
    (rows,) = symbolic("m")
    with pytest.raises(SpecError, match=rf"implementation='{implementation}' with operands of \[m, 16\] and .*XLA"):
        exported(
            lambda lhs, rhs: systolic.matmul(lhs, rhs, implementation=implementation, chip="v6e"),
            *shapes((rows, 16), (16, 24)),
        )


def test_the_vectors_and_batches_of_symbolic_sizes() -> None:
    batch, rows = symbolic()
    module = exported(systolic.matmul, *shapes((batch, rows, 16), (batch, 16, 24), dtype=F32), platforms=("cpu",))
    lhs, rhs = np.ones((2, 3, 16), np.float32), np.ones((2, 16, 24), np.float32)
    np.testing.assert_allclose(module.call(lhs, rhs), np.full((2, 3, 24), 16.0))
    (length,) = symbolic("k")
    module = exported(systolic.matmul, *shapes((length,), (length,), dtype=F32), platforms=("cpu",))
    np.testing.assert_allclose(module.call(np.ones(7, np.float32), np.ones(7, np.float32)), 7.0)
