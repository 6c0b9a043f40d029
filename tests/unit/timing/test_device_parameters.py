"""Contents of arguments on each device of a slice, where the HLO does not say how they are cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from systolic import slice_mesh
from systolic.simulator import Unknown, parse_hlo
from systolic.timing.sliced import device_parameters

HLO = """ENTRY %main (rows: s32[4,128]) -> s32[4,128] {
  ROOT %rows = s32[4,128]{1,0:T(8,128)} parameter(0)
}
"""
ROWS = np.arange(16 * 128, dtype=np.int32).reshape(16, 128)
PROGRAM: Any = SimpleNamespace(assignment=(0, 1, 2, 3), top_level_hlo=HLO)


def first_words(*args: object) -> list[object]:
    (words, *others) = zip(*device_parameters(PROGRAM, parse_hlo(HLO), [ROWS], args), strict=True)
    assert not others
    return [word if isinstance(word, Unknown) else int(word[0]) for word in words]


@pytest.mark.parametrize("axes", [("expert",), ("data", "expert")])
def test_an_argument_is_cut_as_the_caller_says(axes: tuple[str, ...]) -> None:
    devices = slice_mesh("v6e", "2x2", expert=4).devices
    mesh = Mesh(devices.reshape((1,) * (len(axes) - 1) + (-1,)), axes)
    cut = NamedSharding(mesh, PartitionSpec("expert"))
    placed = jax.ShapeDtypeStruct(ROWS.shape, ROWS.dtype, sharding=cut)
    assert first_words(placed) == [0, 4 * 128, 8 * 128, 12 * 128]


def test_an_argument_of_which_nobody_says_how_it_is_cut_is_not_known() -> None:
    assert all(isinstance(word, Unknown) for word in first_words(jax.ShapeDtypeStruct(ROWS.shape, ROWS.dtype)))
