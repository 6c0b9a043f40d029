"""Each device's part of an argument, read from the HLO and compared with JAX."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from systolic import slice_mesh
from systolic.simulator import SimulationError
from systolic.timing.shards import parameter_shardings

HLO = """HloModule m

%other (a: f32[2]) -> f32[2] {{
  %p = f32[2] parameter(0), sharding={{devices=[2]<=[2]}}
}}

ENTRY %main (x: f32[2]) -> f32[2] {{
  %x = f32[2]{{0}} parameter(0), sharding={{{sharding}}}, metadata={{}}
}}
"""
MESH = slice_mesh("v6e", "2x4", data=2, model=4)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        # What XLA writes for these specs over this mesh.
        ("devices=[2,4]<=[8]", PartitionSpec("data", "model")),
        ("devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate", PartitionSpec(None, "model")),
        ("devices=[2,1,4]<=[8] last_tile_dim_replicate", PartitionSpec("data", None)),
        ("devices=[4,2]<=[2,4]T(1,0)", PartitionSpec("model", "data")),
        ("devices=[8,1]<=[8]", PartitionSpec(("data", "model"), None)),
        ("devices=[8,1]<=[2,4]T(1,0)", PartitionSpec(("model", "data"), None)),
        ("devices=[2,4]0,1,2,3,4,5,6,7", PartitionSpec("data", "model")),
    ],
)
def test_parts_are_those_of_jax(text: str, spec: PartitionSpec) -> None:
    array = np.arange(16 * 24).reshape(16, 24)
    (sharding,) = parameter_shardings(HLO.format(sharding=text)).values()
    indices = NamedSharding(MESH, spec).devices_indices_map(array.shape)
    for partition, device in enumerate(MESH.devices.flat):
        np.testing.assert_array_equal(sharding.part(array, partition), array[indices[device]])


def test_the_last_part_is_filled_up() -> None:
    (sharding,) = parameter_shardings(HLO.format(sharding="devices=[4]<=[4]")).values()
    parts = [sharding.part(np.arange(1, 7), partition).tolist() for partition in range(4)]
    assert parts == [[1, 2], [3, 4], [5, 6], [0, 0]]


def test_whole_arrays_and_forms_that_are_not_known() -> None:
    assert parameter_shardings(HLO.format(sharding="replicated")) == {}
    with pytest.raises(SimulationError, match="manual"):
        parameter_shardings(HLO.format(sharding="manual"))
