"""Arguments that `grouped_matmul` refuses, and products that it leaves to XLA."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic
from systolic.schedule import IllegalTilesError
from systolic.spec import SpecError

LHS, RHS, SIZES = jnp.ones((16, 8)), jnp.ones((2, 8, 24)), np.array([9, 7])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lhs": jnp.ones(8)}, "lhs"),
        ({"rhs": jnp.ones((8, 24))}, "rhs"),
        ({"rhs": jnp.ones((2, 9, 24))}, "k=8 and 9"),
        ({"transpose_rhs": True}, "k=8 and 24"),
        ({"rhs": RHS.astype(jnp.uint8)}, "uint8"),
        ({"up": RHS[:, :, :8]}, "up needs the shape"),
        ({"up": RHS.astype(jnp.bfloat16)}, "up needs the shape and dtype"),
        ({"up": RHS, "side_by_side": True}, "no up"),
        ({"rhs": RHS[:, :, :23], "side_by_side": True}, "even number"),
        ({"group_sizes": np.array([9.0, 7.0])}, "group_sizes"),
        ({"group_sizes": np.array([[9, 7]])}, "group_sizes"),
        ({"group_sizes": np.array([9, 6, 1])}, "3 group_sizes for 2"),
        ({"group_sizes": np.array([16]), "group_offset": 0}, "1 group_sizes for 2"),
        ({"group_sizes": np.array([9, 8])}, "17 rows"),
        ({"group_sizes": np.array([2**62, 2**62])}, "9223372036854775808 rows"),
        ({"group_sizes": np.array([9, -1])}, "group_sizes has -1"),
        ({"group_offset": -1}, "group_offset=-1: .* from 0 to 0"),
        ({"group_sizes": np.array([9, 6, 1]), "group_offset": 2}, "group_offset=2: .* from 0 to 1"),
        ({"group_offset": np.int64(2**40)}, "group_offset=1099511627776"),
        ({"group_offset": True}, "group_offset is True"),
        ({"group_offset": 1.5}, "group_offset is 1.5"),
        ({"group_offset": [0]}, r"group_offset is \[0\]"),
        ({"group_offset": np.array([0, 1])}, r"group_offset is int\d+ of shape \[2\]"),
        ({"bias": jnp.ones(24)}, "bias"),
        ({"row_scale": jnp.ones(2)}, "row_scale"),
        ({"residual": jnp.ones(24)}, "residual"),
        ({"residual": jnp.ones((16, 24), jnp.uint8)}, "residual is uint8"),
        ({"existing_out": jnp.ones((16, 8))}, "existing_out"),
        ({"activation": "glue"}, "glue"),
        ({"precision": "higher"}, "higher"),
        ({"rows_per_group": 0}, "rows_per_group"),
    ],
)
def test_refused(changes: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"lhs": LHS, "rhs": RHS, "group_sizes": SIZES, **changes}
    with pytest.raises(SpecError, match=named):
        systolic.grouped_matmul(given.pop("lhs"), given.pop("rhs"), given.pop("group_sizes"), **given)


@pytest.mark.exhaustive
def test_dtypes_of_the_result() -> None:
    def dtype(of: Any, **keywords: Any) -> str:
        return systolic.grouped_matmul(LHS.astype(of), RHS.astype(of), SIZES, **keywords).dtype.name

    assert dtype("float32") == "float32"
    assert dtype("float16") == "float16"
    assert dtype("int8") == "int32"
    assert dtype("bfloat16", preferred_element_type="float32") == "float32"
    assert dtype("int8", up=RHS.astype("int8")) == "float32"
    assert systolic.grouped_matmul(LHS.astype("bfloat16"), RHS, SIZES).dtype == "float32"
    assert systolic.grouped_matmul(LHS.astype("bfloat16"), RHS.astype("int8"), SIZES).dtype == "bfloat16"


def test_where_no_tiles_fit_xla_multiplies() -> None:
    small = dataclasses.replace(systolic.chip("v5e"), name="small", aliases=(), usable_vmem_bytes_per_core=2**14)
    out = systolic.grouped_matmul(LHS, RHS, SIZES, chip=small)
    np.testing.assert_array_equal(out, np.full((16, 24), 8.0))
    with pytest.raises(IllegalTilesError):
        systolic.grouped_matmul(LHS, RHS, SIZES, chip=small, implementation="interpret")


def test_it_is_planned_for_the_rows_that_are_expected() -> None:
    specs = [
        systolic.GroupedSpec(
            m=8192, k=4096, n=1536, groups=128, rows_per_group=rows, dtype="bfloat16", dtype_out="bfloat16"
        )
        for rows in (64, 4096)
    ]
    few, many = (systolic.plan(spec, "v6e") for spec in specs)
    assert few.config.subtile_m < many.config.subtile_m
    assert "128 groups" in str(few)


def test_it_is_traced_under_shard_map_and_checkpoint() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("expert",))
    part = jax.sharding.PartitionSpec

    def product(lhs: Any, rhs: Any, sizes: Any) -> Any:
        return systolic.grouped_matmul(lhs, rhs, sizes, implementation="xla")

    sharded = jax.shard_map(
        product, mesh=mesh, in_specs=(part("expert"), part("expert"), part("expert")), out_specs=part("expert")
    )
    np.testing.assert_array_equal(sharded(LHS, RHS, jnp.asarray(SIZES)), np.full((16, 24), 8.0))
    kept = jax.checkpoint(product)
    found = jax.grad(lambda lhs: kept(lhs, RHS, jnp.asarray(SIZES)).sum())(LHS)
    np.testing.assert_array_equal(found, np.full((16, 8), 24.0))
