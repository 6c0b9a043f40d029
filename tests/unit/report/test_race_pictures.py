"""The parts of a race that are drawn."""

from __future__ import annotations

from pathlib import Path

from systolic.bench.rows import BenchRow, read_rows
from systolic.report import save_png, times_plot
from systolic.report.race_pictures import picture


def row(suite: str, group: str, chip: str, m: int, ours_us: float | None, **more) -> BenchRow:
    sizes = {"k": 4096, "n": 14336, **more}
    values = {"suite": suite, "group": group, "chip": chip, "dtype": "bfloat16", "status": "ok", "ours_us": ours_us}
    (made,) = read_rows([{"case": f"{group} {m}", "m": m, **values, **sizes}])
    return made


def test_a_line_for_each_format_and_a_panel_for_each_chip(tmp_path: Path) -> None:
    rows = [
        row("quantized", f"{name} {group}", chip, m, m / 10)
        for name in ("int4/128", "w8a8")
        for chip in ("v5e", "v6e")
        for group, m in (("decode", 16), ("decode", 64), ("prefill", 2048))
    ]
    other = row("quantized", "int4/128 decode", "v5e", 16, 3.0, k=28672)
    untimed = row("quantized", "fp4 decode", "v5e", 16, None)
    found = picture([other, *rows, untimed])
    assert found is not None
    assert {(point.series, point.panel) for point in found.points} == {
        (name, chip) for name in ("int4/128", "w8a8") for chip in ("v5e", "v6e")
    }
    assert sorted(point.x for point in found.points) == [16] * 4 + [64] * 4 + [2048] * 4
    assert "4096 × 14336" in found.title
    target = tmp_path / "formats.png"
    save_png(times_plot(found.points, title=found.title, x_title=found.x_title, provenance="simulated"), target)
    assert target.read_bytes().startswith(b"\x89PNG")


def test_densities_beside_a_dense_matrix() -> None:
    rows = [
        row("sparse", "dense", "v6e", 16384, 10 * density, density=density, series="blocks of 512²", xla_us=9.0)
        for density in (0.1, 0.8)
    ]
    mask = row("sparse", "mask", "v6e", 4096, 1.0, density=0.5)
    found = picture([*rows, mask])
    assert found is not None
    assert [(point.x, point.time_us, point.series, point.dashed) for point in found.points] == [
        (0.1, 1.0, "blocks of 512²", False),
        (0.8, 8.0, "blocks of 512²", False),
        (0.1, 9.0, "XLA, dense", True),
        (0.8, 9.0, "XLA, dense", True),
    ]


def test_losses_over_tokens_beside_xla() -> None:
    groups = ("forward", "with gradients", "keeping logits")
    rows = [
        row("loss", group, "v7x", m, ours, xla_us=2 * ours, n=151_936)
        for group, ours in zip(groups, (1.0, 4.0, 3.0), strict=True)
        for m in (2048, 16384)
    ]
    of_another_layer = row("loss", "forward", "v7x", 2048, 1.0, n=128_256)
    chart = picture([of_another_layer, *rows])
    assert chart is not None
    assert [(point.x, point.time_us, point.series, point.dashed) for point in chart.points if point.x == 2048] == [
        (2048, 1.0, "systolic, forward", False),
        (2048, 4.0, "systolic, with gradients", False),
        (2048, 3.0, "systolic, keeping logits", False),
        (2048, 2.0, "XLA, forward", True),
        (2048, 8.0, "XLA, with gradients", True),
    ]
    assert "151936" in chart.title


def test_layers_of_experts_over_tokens_below_xla_and_above_the_limit() -> None:
    rows = [
        row("moe-layer", "qwen3-30b layer", chip, m, 3.0, xla_us=6.0, model_hbm_us=2.0, model_mxu_us=1.0)
        for chip in ("v6e", "v7x")
        for m in (128, 2048)
    ]
    of_another_layer = row("moe-layer", "mixtral-8x7b layer", "v6e", 128, 9.0)
    chart = picture([of_another_layer, *rows])
    assert chart is not None
    assert [(point.time_us, point.series, point.dashed) for point in chart.points if point.x == 128] == [
        (3.0, "systolic", False),
        (6.0, "XLA", False),
        (2.0, "limit", True),
    ] * 2
    assert {point.panel for point in chart.points} == {"v6e", "v7x"}
    assert chart.title == "qwen3-30b layer of experts"


def test_nothing_to_draw() -> None:
    assert picture([row("square", "square", "v5e", 512, 1.0)]) is None
    assert picture([row("sparse", "mask", "v5e", 512, 1.0)]) is None
