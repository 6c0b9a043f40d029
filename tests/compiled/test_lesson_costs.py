"""Lessons of the details page through the compiler, on reduced work: what they count is there, and adds up."""

import pytest
from operation_cost_pages import pages
from operation_costs import costs
from operations import ELEMENTWISE, READ, SHAPINGS, Elementwise, Shaping

from systolic.chips import V5E, V5P, V6E
from systolic.lessons import LESSONS
from systolic.lessons.runner import run_parts
from systolic.lessons.scalar_prefetch import PARTS


def chosen(*names: str) -> list[Elementwise | Shaping]:
    found = [each for each in (*ELEMENTWISE, *SHAPINGS) if each.name in names and each.dtype in ("float32", "int8")]
    assert len(found) >= len(names)
    return found


@pytest.mark.exhaustive
def test_costs_on_two_chips() -> None:
    operations = chosen("a + b", "abs(a)", "exp(a)", READ, "[8,8,128] to [64,128]")
    priced = costs(operations, [V5E, V6E])
    found = {(each.operation.name, each.operation.dtype, each.chip): each for each in priced}
    for chip in ("v5e", "v6e"):
        add = found["a + b", "float32", chip]
        assert add.cycles is not None
        # One instruction; four fit a bundle.
        assert add.issued["vpu"] == pytest.approx(1, abs=0.05)
        assert 0.25 <= add.cycles < 0.35
        assert found["abs(a)", "float32", chip].issued["vpu"] == pytest.approx(1, abs=0.05)
        assert found["exp(a)", "float32", chip].issued["eup"] == pytest.approx(1, abs=0.05)
        assert found["[8,8,128] to [64,128]", "float32", chip].cycles == found[READ, "float32", chip].cycles
        refused = found["a + b", "int8", chip]
        assert refused.cycles is None
        assert "i16" in refused.reason
    written = pages(priced, "costs.md", "    python costs.py")
    assert "| `exp(a)` | float32 | medium |" in written["costs.md"]
    assert "| `a + b` | int8 |  | refused | refused |" in written["costs/integers.md"]
    assert "| `[8,8,128] to [64,128]` | float32 | free |" in written["costs/shapes.md"]
    for name in ("integers", "shapes"):
        assert f"](costs/{name}.md)" in written["costs.md"]
        assert "](../costs.md)" in written[f"costs/{name}.md"]


def test_chosen_blocks_move_every_byte_once_each_way() -> None:
    parts = [part for part in PARTS if part.name.startswith("chosen")]
    found = run_parts(parts, [V5P])
    assert found.ok
    for part in parts:
        moved = found[part.name, "v5p"].hbm_bytes
        wanted = 2 * part.args[1].size * 4
        assert moved is not None
        assert wanted <= moved < 1.001 * wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scalar_prefetch", "numbers_on_chip"])
def test_whole_lesson(name: str) -> None:
    told = LESSONS[name].run([V5E])
    assert told.ok
    assert all(told.lines)
