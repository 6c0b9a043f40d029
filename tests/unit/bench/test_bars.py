"""The project's own bars for races: which rows miss which, and what a summary says of the rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from systolic.bench.bars import summary
from systolic.bench.chip_bars import ChipBars, chip_bars
from systolic.bench.rows import BenchRow, PeerTime, read_rows


def row(case: str, **changes: Any) -> BenchRow:
    values = {"suite": "square", "group": "square", "chip": "v6e", "m": 4096, "k": 4096, "n": 4096}
    values |= {"dtype": "bfloat16", "precision": "default", "status": "ok", "ours_us": 1.0, "xla_us": 1.0}
    peers = [dataclasses.asdict(peer) for peer in changes.pop("peers", ())]
    (made,) = read_rows([{"case": case, "peers": peers, **values, **changes}])
    return made


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"xla_us": 0.96, "model_mxu_us": 0.93}, {"× XLA, geometric mean, at least"}),
        ({"xla_us": 0.94, "m": 2048}, {"× XLA, geometric mean, at least", "× XLA from 2048³, at least"}),
        ({"xla_us": 0.94, "m": 1024}, {"× XLA, geometric mean, at least"}),
        ({"xla_us": 0.79, "m": 1024}, {"× XLA, geometric mean, at least", "× XLA below 2048³, at least"}),
        ({"model_mxu_us": 0.93, "chip": "v5e"}, {"of the model's limit from 4096³, at least"}),
        ({"model_mxu_us": 0.93}, set()),
        ({"model_mxu_us": 0.5, "dtype": "int8"}, set()),
        ({"xla_us": 0.99, "group": "prefill"}, {"× XLA, geometric mean, at least"}),
        ({"xla_us": 0.985, "group": "decode"}, set()),
        ({"xla_us": 0.97, "group": "decode"}, {"× XLA, at least"}),
        ({"xla_us": 0.97, "group": "decode", "dtype": "int8"}, {"× XLA, geometric mean, at least"}),
        (
            {"group": "decode", "model_hbm_us": 0.96},
            {"of the model's HBM limit, at least"},
        ),
        ({"group": "decode", "model_hbm_us": 0.9, "model_mxu_us": 0.96}, set()),
        ({"xla_us": 1.02, "group": "fused"}, {"× XLA, geometric mean, at least"}),
        ({"xla_us": 1.02, "group": "fused", "dtype": "int8"}, set()),
        ({"group": "edges", "even_us": 1 / 1.14, "xla_us": 0.5}, set()),
        ({"group": "edges", "even_us": 1 / 1.16}, {"× the next even size, at most"}),
        ({"group": "edges", "other_ops_us": 0.03}, {"of the time outside the kernel, at most"}),
        ({"suite": "quantized", "group": "w8a8 decode", "model_hbm_us": 0.9}, set()),
        (
            {"suite": "quantized", "group": "w8a8 prefill", "model_mxu_us": 0.84, "xla_us": 1.06},
            {"of the model's limit, geometric mean, at least"},
        ),
        (
            {"suite": "quantized", "group": "int4 decode", "model_hbm_us": 0.81, "xla_us": 1.3, "chip": "v7x"},
            {"× XLA, geometric mean, at least"},
        ),
        ({"suite": "quantized", "group": "int4 decode", "model_hbm_us": 0.81, "xla_us": 1.3}, set()),
        (
            {
                "suite": "quantized",
                "group": "w8a8 decode",
                "model_hbm_us": 0.9,
                "peers": (PeerTime(name="peer", config="", time_us=0.99),),
            },
            {"× the best public kernel, geometric mean, at least"},
        ),
        ({"suite": "quantized", "group": "fp8 prefill", "model_mxu_us": 0.84}, set()),  # not as such on v6e
        ({"bundles": 16_001}, {"bundles of code, at most"}),
        ({"compile_s": 21.0}, {"s to compile, at most"}),
    ],
)
def test_bars(changes: dict[str, Any], missed: set[str]) -> None:
    assert {bar.bar for bar in summary([row("x", **changes)]).missed} == missed


def test_a_summary_has_the_mean_shares_of_each_group() -> None:
    peers = [(PeerTime(name="peer", config="", time_us=time_us),) for time_us in (2.0, 8.0)]
    rows = [row("a", model_hbm_us=0.5, peers=peers[0]), row("b", model_hbm_us=0.125, peers=peers[1]), row("c")]
    (found,) = summary(rows).standings
    assert found.share_of_model == pytest.approx(0.25)
    assert found.geometric_mean_peer == pytest.approx(4.0)


def test_a_summary_names_the_worst_row_of_each_group() -> None:
    rows = [row("a", xla_us=2.0), row("b", xla_us=0.5), row("c", xla_us=None, ours_us=None), row("d", chip="v5e")]
    found = summary(rows)
    assert found.geometric_mean == pytest.approx(1.0)
    assert (found.worst, found.worst_row) == (0.5, "v6e b")
    assert [(each.chip, each.rows, each.timed, each.worst_case) for each in found.standings] == [
        ("v6e", 3, 2, "b"),
        ("v5e", 1, 1, "d"),
    ]


def test_bars_of_a_chip_hold_in_each_clock_state_and_unknown_chips_have_none() -> None:
    assert chip_bars("v7x@p7") == chip_bars("v7x") != ChipBars()
    assert chip_bars("v9") == ChipBars()
