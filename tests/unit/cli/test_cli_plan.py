"""`systolic plan`: what is planned of a product, and tiles that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


def test_help_has_an_example(run: Run) -> None:
    code, out, _ = run("plan", "--help")
    assert code == 0
    assert "  systolic plan " in out


@pytest.mark.exhaustive
def test_a_plan_of_each_chip(run: Run) -> None:
    code, out, _ = run("plan", "2048,4096,14336", "--chip", "v5e,v6e", "--bias", "--activation", "gelu")
    assert code == 0
    for known in ("v5e", "v6e"):
        assert f"2048 × 4096 × 14336 (m k n), bfloat16 × bfloat16 → bfloat16 on {known}" in out
    for word in ("kernel", "why", "time", "grid", "VMEM", "HBM"):
        assert sum(line.startswith(f"{word} ") for line in out.splitlines()) == 2
    assert "nothing was compiled" in out


def test_a_plan_as_json(run: Run) -> None:
    arguments = ("plan", "1024,2048,512", "--transpose-rhs", "--residual", "--batch", "3", "--out", "float32")
    code, out, _ = run(*arguments, "--json", "-")
    (row,) = json.loads(out)["rows"]
    spec = row["spec"]
    assert code == 0
    assert (spec["m"], spec["k"], spec["n"]) == (1024, 2048, 512)
    assert (spec["batch"], spec["batch_lhs"], spec["batch_rhs"]) == (3, 3, 3)
    assert (spec["transpose_lhs"], spec["transpose_rhs"]) == (False, True)
    assert spec["dtype_out"] == "float32"
    assert spec["epilogue"]["residual"] == {"rows": True, "columns": True, "dtype": "bfloat16"}
    assert row["provenance"] == "modelled"
    assert row["time_us"] >= row["mxu_us"]
    assert row["vmem_bytes"] <= row["vmem_limit_bytes"]
    assert (
        row["hbm_bytes"] >= row["least_hbm_bytes"] == 3 * (2 * (1024 * 2048 + 2048 * 512 + 1024 * 512) + 4 * 1024 * 512)
    )


def test_tiles_that_break_rules_are_refused_with_each(run: Run) -> None:
    code, out, err = run("plan", "1024,1024,1024", "--tiles", "100,100,100")
    assert (code, out) == (2, "")
    assert "tile_m=100" in err
    assert "tile_k=100" in err
    assert "tile_n=100" in err


def test_a_layer_of_experts_part_by_part(run: Run, tmp_path: Path) -> None:
    sizes = {"m": 512, "k": 1024, "n": 256, "experts": 16, "top_k": 2, "dtype": "bfloat16", "devices": 4}
    file = tmp_path / "layer.json"
    file.write_text(json.dumps({"op": "moe", "spec": sizes}))
    code, out, _ = run("plan", "--spec", str(file), "--chip", "v6e")
    assert code == 0
    assert "512 tokens × 1,024, 2 of 16 experts × 256 over 4 devices, bfloat16 on v6e" in out
    # Rows of tokens are copied together inside the first products.
    for part in ("form", "all-gather", "gate and up", "down", "sums of tokens", "reduce-scatter"):
        assert any(line.startswith(part) for line in out.splitlines()), part
    code, out, _ = run("plan", "--spec", str(file), "--chip", "v6e,v7x", "--json", "-")
    rows = json.loads(out)["rows"]
    assert [(row["chip"], row["spec"]["experts"], len(row["parts"])) for row in rows] == [
        ("v6e", 16, 5),
        ("v7x", 16, 5),
    ]
    code, _, err = run("plan", "--spec", str(file), "--tiles", "128,128,128")
    assert code == 2
    assert "several" in err
