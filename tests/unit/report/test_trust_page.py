"""The page on trust and its tables: a page for each chip, and flags of a row below the table, so that it fits."""

from __future__ import annotations

import re

from systolic.chips import chip
from systolic.report.trust import TrustFacts, trust_pages
from systolic.validation.errors import ComparedRow, statistics_by_chip

P7 = {"xla_tpu_dvfs_p_state": "7", "xla_jf_bounds_check": "false"}


def compared(predicted_us: float, flags: dict[str, str], *, on: str = "v7x", counted: bool = True) -> ComparedRow:
    return ComparedRow(
        line=1,
        source="a page",
        chip=on,
        op="xla",
        kind="xla product",
        m=4096,
        k=4096,
        n=4096,
        dtype_lhs="bfloat16",
        dtype_rhs="bfloat16",
        dtype_out="bfloat16",
        tile_m=None,
        tile_k=None,
        tile_n=None,
        published_us=100.0,
        timing="device",
        flags=flags,
        predicted_us=predicted_us,
        provenance="simulated",
        error=predicted_us / 100 - 1,
        dispatch_us=0.0,
        counted=counted,
        in_view=False,
        reason="" if counted else "its source leaves it open",
        program="p",
    )


def pages_of(rows: list[ComparedRow]) -> dict[str, str]:
    facts = TrustFacts(
        command="systolic validate t.csv",
        versions={},
        dispatch_us=0.0,
        rows=rows,
        statistics=statistics_by_chip(rows),
        chips=[chip("v7x")],
        constants=None,
        plot=None,
        page="far.md",
    )
    return trust_pages(facts)


def test_flags_are_numbered_and_stand_below_the_table() -> None:
    rows = [compared(101, P7), compared(102, {}), compared(103, {"xla_tpu_dvfs_p_state": "7"}), compared(104, P7)]
    page = pages_of(rows)["far/rows_v7x.md"]
    programs = re.findall(r"^\| (xla[^|]*) \| 4096/4096/4096 \|", page, re.MULTILINE)
    assert programs == ["xla (1)", "xla", "xla (2)", "xla (1)"]
    table, notes = page.split("\n\n- (1)")
    assert "xla_" not in table
    assert notes.startswith(
        " `xla_tpu_dvfs_p_state=7 xla_jf_bounds_check=false`\n- (2) `xla_tpu_dvfs_p_state=7`\n\nThe times are from:"
    )


def test_each_chip_has_a_page_and_the_first_page_links_to_all() -> None:
    rows = [
        compared(101, {}),
        compared(250, P7, on="v7x@p7"),
        compared(103, {}, on="v6e"),
        compared(9, {}, counted=False),
    ]
    pages = pages_of(rows)
    first = pages.pop("far.md")
    assert {"far/rows_v7x.md", "far/rows_v7x_p7.md", "far/rows_v6e.md", "far/not_counted.md"} <= set(pages)
    tree = first.split("```{toctree}")[1]
    for name, text in pages.items():
        assert f"]({name})" in first or name == "far/collectives.md", name
        assert f"\n{name.removesuffix('.md')}\n" in tree
        assert text.splitlines()[2].startswith("Part of [How far to trust a simulated time](../far.md).")
    assert pages["far/rows_v7x_p7.md"].count("| xla") == 1
    assert "| 250.0 | +150.0 % |" in pages["far/rows_v7x_p7.md"]
    assert "its source leaves it open" in pages["far/not_counted.md"]
    # The largest error comes first.
    assert re.findall(r"^\| (v[\w@]+) \| xla \|", first, re.MULTILINE)[0] == "v7x@p7"
