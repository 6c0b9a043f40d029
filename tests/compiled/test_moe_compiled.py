"""The TPU compiler takes a layer of experts with its gradients, whose rows kernels move."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import systolic

TOKENS, EXPERTS, F = 200, 8, 256


# 1,152 columns are a register of eight tiles and one tile; 320 are not whole tiles.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("chip", "d", "dtype"), [("v5e", 1152, "bfloat16"), ("v6e", 320, "float32")])
def test_kernels_move_rows_forward_and_backward(chip: str, d: int, dtype: str) -> None:
    def loss(*given: Any) -> jax.Array:
        return (systolic.moe(*given, top_k=2).astype(jnp.float32) ** 2).sum()

    shapes = (TOKENS, d), (EXPERTS, d, F), (EXPERTS, d, F), (EXPERTS, F, d)
    x, *weights = (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes)
    logits = jax.ShapeDtypeStruct((TOKENS, EXPERTS), jnp.float32)
    run = systolic.simulate(jax.grad(loss, argnums=(0, 1, 2, 3, 4)), x, logits, *weights, chip=chip)
    kernels = [op.name for op in run.cores[0].ops if op.is_pallas]
    for kernel in ("combine", "spread"):  # once in each direction
        assert sum(name.startswith(f"systolic_{kernel}") for name in kernels) >= 2, kernels


@pytest.mark.exhaustive
def test_a_device_of_four_copies_a_quarter_of_the_rows() -> None:
    """A router's typical result says how many rows each device has; the room for all of them is not written."""
    mesh, tokens, top_k, d = systolic.slice_mesh("v6e", "2x2", expert=4), 512, 4, 256
    shapes = (tokens, d), (tokens, EXPERTS), (EXPERTS, d, F), (EXPERTS, d, F), (EXPERTS, F, d)
    given = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P("expert"))) for shape in shapes]

    def local(*given: Any) -> jax.Array:
        return systolic.moe(*given, top_k=top_k, axis_name="expert")

    layer = jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))
    run = systolic.simulate(layer, *given, chip="v6e", topology="2x2")
    kinds = sorted(collective.kind for collective in run.collectives)
    assert kinds == ["all-gather", "all-gather", "reduce-scatter"]
    products = [op for op in run.slowest.cores[0].ops if op.name.startswith("systolic_grouped")]
    results_bytes = 2 * tokens * top_k // 4 * (d + F)
    assert sum(op.hbm_written_bytes for op in products) < 1.25 * results_bytes


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "form",
    [
        pytest.param(None, id="bfloat16"),
        pytest.param({"dtype": "int8"}, id="int8", marks=pytest.mark.slow),
        pytest.param({"dtype": "int4", "block": 128}, id="int4, 128", marks=pytest.mark.slow),
        pytest.param({"dtype": "e4m3", "axis": (-2, -1), "block": (128, 128)}, id="e4m3, 128 × 128"),
    ],
)
def test_on_a_mesh_that_is_set_tokens_and_sums_go_round_its_ring(form: dict[str, Any] | None) -> None:
    mesh, tokens, d = systolic.slice_mesh("v6e", "2x2", expert=4), 1024, 256
    shapes = (tokens, d), (tokens, EXPERTS), (EXPERTS, d, F), (EXPERTS, d, F), (EXPERTS, F, d)
    arrays: list[Any] = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    if form is not None:
        arrays[2:] = [jax.eval_shape(functools.partial(systolic.quantize, **form), array) for array in arrays[2:]]
    cut = NamedSharding(mesh, P("expert"))
    given = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=cut), arrays)

    def local(*given: Any) -> jax.Array:
        return systolic.moe(*given, top_k=4, axis_name="expert")

    layer = jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))
    with jax.set_mesh(mesh):
        run = systolic.simulate(layer, *given, chip="v6e", topology="2x2")
    kinds = [collective.kind for collective in run.collectives]
    # Choices, then the first tokens by one hop of two; a kernel sends all others, another one the sums.
    assert (kinds.count("all-gather"), kinds.count("collective-permute")) == (1, 2)
    assert "reduce-scatter" not in kinds
    names = [op.name for op in run.slowest.cores[0].ops]
    dtypes = "bfloat16" if form is None else f"bfloat16_{given[2].dtype.name}"
    for kernel in ("ring_products", "scatter_products"):
        assert any(name.startswith(f"systolic_{kernel}_{dtypes}_{EXPERTS // 4}") for name in names), names


@pytest.mark.exhaustive
@pytest.mark.parametrize(("chip", "topology"), [("v5e", "2x2"), ("v6e", "2x2"), ("v7x", "2x2x1")])
def test_rows_that_begin_within_tiles_go_to_other_devices(chip: str, topology: str) -> None:
    devices, d, rows = len(systolic.slice_devices(chip, topology)), 256, 512
    mesh = systolic.slice_mesh(chip, topology, expert=devices)
    size = rows // devices - 3  # rows that begin and end within tiles
    places = np.arange(devices * devices, dtype=np.int32) % devices * size, np.full(devices * devices, size, np.int32)
    targets = np.repeat(np.arange(devices, dtype=np.int32) * size, devices)

    def local(x: jax.Array, *slices: jax.Array) -> jax.Array:
        *places, arrivals = slices
        return systolic.ragged_all_to_all(x * 2, x + 1, *places, axis_name="expert", recv_offsets=arrivals) + 1

    exchange: Any = jax.shard_map(local, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))
    given = (*places, targets, places[1], places[0])
    x = jax.ShapeDtypeStruct((devices * rows, d), jnp.bfloat16)
    program = jax.jit(exchange, in_shardings=NamedSharding(mesh, P("expert")))
    run = systolic.simulate(program, x, *given, chip=chip, topology=topology)
    (collective,) = run.collectives
    assert collective.kind == "pallas"
    assert any(op.name.startswith("systolic_ragged_all_to_all") for op in run.slowest.cores[0].ops)
