"""`systolic bench` with the real compiler: one product of each kind, each held against what must be so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from systolic.bench.cases import Case
from systolic.bench.moe_layer_spec import LayerSpec
from systolic.bench.moe_layers import layers_on_slice
from systolic.bench.race import race
from systolic.chips import chip
from systolic.cli import main
from systolic.compiler import WorkerPool
from systolic.timing.runner import Runner


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def raced(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[dict[str, Any]]:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(cache))
    target = tmp_path / "bench.json"
    assert main(["bench", *arguments, "--json", str(target), "-q"]) == 0
    return json.loads(target.read_text())["rows"]


@pytest.mark.exhaustive
def test_a_square(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = raced(cache, tmp_path, monkeypatch, "--suite", "square", "--only", "512", "--chip", "v6e")
    assert row["status"] == "ok"
    assert row["ratio"] == pytest.approx(row["xla_us"] / row["ours_us"])
    # Nothing is faster than the model's limits, and everything has to cross HBM once.
    assert max(row["model_mxu_us"], row["model_hbm_us"]) < min(row["ours_us"], row["xla_us"] + row["xla_prefetch_us"])
    assert row["hbm_bytes"] >= row["least_hbm_bytes"]
    assert row["other_ops_us"] == 0


@pytest.mark.slow
def test_a_product_that_is_summed_over_a_slice(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slice_options = ("--topology", "2x2", "--mesh", "data=2,model=2")
    arguments = ("--suite", "sharded", "--only", "rows 256", "--chip", "v6e", *slice_options, "--against", "xla")
    (row,) = raced(cache, tmp_path, monkeypatch, *arguments)
    assert (row["topology"], row["mesh"], row["m"]) == ("2x2", "data=2,model=2", 256)
    for who in ("ours", "xla"):
        # Half of the rows, all columns, in bfloat16, go to the other device that has the same rows, and come back.
        assert 0 < row[f"{who}_exposed_us"] < row[f"{who}_us"]
        assert row[f"{who}_exposed_us"] > 128 * 4096 * 2 / 200e9 * 1e6
    assert row["least_hbm_bytes"] == 2 * (128 * 7168 + 7168 * 4096 + 128 * 4096)
    assert main(["bench", "--from", str(tmp_path / "bench.json")]) == 0
    assert "exposed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        pytest.param({"dtype_rhs": "int8"}, id="int8"),
        pytest.param({"dtype_rhs": "float8_e4m3fn", "rhs_block": 128, "scale_columns": 128}, id="e4m3, 128 × 128"),
    ],
)
def test_a_layer_of_quantized_experts_over_a_slice(
    form: dict[str, Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(cache))
    spec = LayerSpec(m=1024, k=256, n=256, experts=8, top_k=4, dtype="bfloat16", **form)
    case = Case(suite="moe-layer", group="", name="layer", spec=spec)
    with WorkerPool(max_workers=1) as pool:
        (row,) = race(layers_on_slice([case], "2x2", {"expert": 4}), [chip("v6e")], Runner(pool))
    assert (row.ours.status, row.xla.reason, row.peers) == ("ok", "", ())
    for program in (row.ours, row.xla):
        assert 0 < (program.exposed_us or 0) < (program.time_us or 0)
        assert (row.limits.model_us or 0) < (program.time_us or 0)
    # An expert's matrices and their scales are read by one device.
    scales = 3 * 8 * 4 if spec.rhs_block else 8 * 3 * 256
    assert row.limits.least_hbm_bytes == (3 * 8 * 256**2 + 4 * (scales + 1024 * 8) + 2 * 2 * 1024 * 256) // 4


@pytest.mark.exhaustive
def test_a_ragged_product_beside_the_next_even_one(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--suite", "edges", "--only", "997·1009", "--chip", "v5e", "--against", "nothing")
    (row,) = raced(cache, tmp_path, monkeypatch, *arguments)
    assert row["over_even"] == pytest.approx(row["ours_us"] / row["even_us"])
    assert row["xla_us"] is None
