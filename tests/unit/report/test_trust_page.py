"""The page on trust: flags of a row stand below the table, so that the table fits a page."""

from __future__ import annotations

import re

from systolic.chips import chip
from systolic.report.trust import TrustFacts, trust_page
from systolic.validation.errors import ComparedRow, statistics_by_chip

P7 = {"xla_tpu_dvfs_p_state": "7", "xla_jf_bounds_check": "false"}


def compared(predicted_us: float, flags: dict[str, str]) -> ComparedRow:
    return ComparedRow(
        line=1,
        source="a page",
        chip="v7x",
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
        counted=True,
        in_view=False,
        reason="",
        program="p",
    )


def test_flags_are_numbered_and_stand_below_the_table() -> None:
    rows = [compared(101, P7), compared(102, {}), compared(103, {"xla_tpu_dvfs_p_state": "7"}), compared(104, P7)]
    facts = TrustFacts(
        command="systolic validate t.csv",
        versions={},
        dispatch_us=0.0,
        rows=rows,
        statistics=statistics_by_chip(rows),
        chips=[chip("v7x")],
        constants=None,
        plot=None,
    )
    page = trust_page(facts)
    programs = re.findall(r"^\| v7x \| (xla[^|]*) \| 4096/4096/4096 \|", page, re.MULTILINE)
    assert programs == ["xla (1)", "xla", "xla (2)", "xla (1)"]
    table, notes = page.split("## Row by row")[1].split("\n\n- (1)")
    assert "xla_" not in table
    assert notes.startswith(
        " `xla_tpu_dvfs_p_state=7 xla_jf_bounds_check=false`\n- (2) `xla_tpu_dvfs_p_state=7`\n\nThe times are from:"
    )
