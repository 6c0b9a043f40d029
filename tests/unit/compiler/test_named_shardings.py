"""Meshes and sharded arguments as text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from systolic import slice_mesh
from systolic.chips import SliceError
from systolic.compiler import NamedFunctionError
from systolic.compiler.arguments import PlacedArray
from systolic.compiler.named_shardings import mesh_axes, sharded_argument

MESH = slice_mesh("v6e", "2x4", data=2, model=4)


def test_axes_of_a_mesh() -> None:
    assert mesh_axes("data=2,model=4") == {"data": 2, "model": 4}
    assert mesh_axes(" ring=8 ") == {"ring": 8}


@pytest.mark.parametrize("text", ["", "data", "data=", "data=0", "data=-2", "2=2", "data=2,,model=4", "data=2 model=4"])
def test_texts_that_are_no_mesh(text: str) -> None:
    with pytest.raises(SliceError, match="NAME=SIZE"):
        mesh_axes(text)


def test_an_axis_twice() -> None:
    with pytest.raises(SliceError, match="data twice"):
        mesh_axes("data=2,data=4")


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("bf16[16,32]@data,model", PartitionSpec("data", "model")),
        ("bf16[16,32]@-,model", PartitionSpec(None, "model")),
        ("bf16[16,32]@data", PartitionSpec("data")),
        ("bf16[16,32]@data+model,-", PartitionSpec(("data", "model"), None)),
        ("bf16[16,32]@-", PartitionSpec(None)),
    ],
)
def test_shardings_of_shapes(text: str, spec: PartitionSpec) -> None:
    found = sharded_argument(text, MESH)
    assert (found.shape, found.dtype) == ((16, 32), jnp.bfloat16)
    assert found.sharding.mesh == MESH
    assert found.sharding.is_equivalent_to(jax.sharding.NamedSharding(MESH, spec), 2)


def test_values_and_shapes_without_a_sharding() -> None:
    placed = sharded_argument("s32[4]=3,1,2,0@data", MESH)
    assert isinstance(placed, PlacedArray)
    np.testing.assert_array_equal(placed.value, [3, 1, 2, 0])
    assert placed.sharding.spec == PartitionSpec("data")
    assert sharded_argument("bf16[16,32]", MESH).sharding is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("bf16[16,32]@dat,model", "no axis 'dat'"),
        ("bf16[16,32]@", "no axis ''"),
        ("bf16[16,32]@data,data", "'data' twice"),
        ("bf16[16,32]@data,-,model", "3 dimensions, and has 2"),
        ("bf16[15,32]@data,model", "dimension 0 of 15 does not divide among 2"),
        ("bf16[16,36]@-,data+model", "dimension 1 of 36 does not divide among 8"),
    ],
)
def test_shardings_that_are_none_of_the_mesh(text: str, what: str) -> None:
    with pytest.raises(SliceError, match=what) as caught:
        sharded_argument(text, MESH)
    assert text in str(caught.value)


def test_without_a_mesh_and_without_an_argument() -> None:
    with pytest.raises(SliceError, match="--mesh"):
        sharded_argument("bf16[16,32]@data", None)
    with pytest.raises(NamedFunctionError):
        sharded_argument("bf16(16)@data", MESH)
