"""A value and its source are one entry: both reach the record, also where a chip is made of another one."""

from __future__ import annotations

from dataclasses import replace

from systolic.chips import V5E, V6E
from systolic.chips.sourced import sourced, with_sources


def test_a_derived_chip_keeps_the_sources_of_the_values_that_it_keeps() -> None:
    machine = replace(V5E.machine, mxu_count=sourced(8, "counted"))
    chip = with_sources(replace(V5E, name=sourced("v8x", "announced"), machine=machine))
    assert (chip.name, chip.machine.mxu_count) == ("v8x", 8)
    changed = {name: source for name, source in chip.sources.items() if V5E.sources[name] != source}
    assert changed == {"name": "announced", "machine.mxu_count": "counted"}


def test_a_part_that_is_missing_has_one_source() -> None:
    chip = with_sources(replace(V6E, sparse_core=sourced(None, "it has none")))
    assert chip.sparse_core is None
    assert {name for name in V6E.sources if name.startswith("sparse_core.")}
    assert [name for name in chip.sources if name.startswith("sparse_core")] == ["sparse_core"]
