"""The main job with the real compiler: a few rows of it, each held against what must be so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from systolic.cli import main
from systolic.lessons.ladder.candidates import hbm_bytes
from systolic.schedule import Tiles
from systolic.spec import MatmulSpec

Ladder = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def ladder(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ladder:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(cache))

    def run(*arguments: str) -> dict[str, Any]:
        target = tmp_path / "ladder.json"
        code = main(["ladder", *arguments, "--json", str(target), "-q"])
        document = json.loads(target.read_text())
        return {"code": code, **document}

    return run


def by_rung(document: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["rung"], row["m"]): row for row in document["rows"]}


@pytest.mark.exhaustive
def test_float32_on_v5e(ladder: Ladder) -> None:
    document = ladder("v1", "v2", "v3", "v5", "--chip", "v5e", "--dtype", "float32", "--sizes", "512,1280")
    rows = by_rung(document)
    assert document["code"] == 0
    assert rows["v1", 512]["status"] == "ok"
    refused = rows["v1", 1280]
    assert refused["status"] == "refused"
    assert refused["vmem_requested_bytes"] == pytest.approx(19.20 * 2**20, rel=0.01)
    assert refused["vmem_available_bytes"] == 16 * 2**20
    assert refused["xla_time_us"] > 0
    for size in (512, 1280):
        spec = MatmulSpec.of(size, size, size, "float32")
        assert rows["v3", size]["hbm_bytes"] == hbm_bytes(spec, Tiles.cube(128))
    # No kernel is faster than the chip, and larger tiles read less.
    for row in document["rows"]:
        assert row["percent_of_peak"] is None or 0 < row["percent_of_peak"] < 100
    assert rows["v5", 512]["time_us"] < rows["v3", 512]["time_us"]
    assert {row["check"] for row in document["rows"] if row["m"] == 512} == {"right"}
    assert {row["provenance"] for row in document["rows"] if row["time_us"]} == {"simulated"}


@pytest.mark.exhaustive
def test_int8_is_compiled_and_its_peak_is_its_own(ladder: Ladder) -> None:
    rows = by_rung(ladder("v5", "--chip", "v5e", "--dtype", "int8", "--sizes", "512"))
    row = rows["v5", 512]
    assert (row["status"], row["check"], row["max_abs_error"], row["dtype_out"]) == ("ok", "right", 0.0, "int32")
    assert row["percent_of_peak"] == pytest.approx(100 * row["tflops"] / 394)


@pytest.mark.exhaustive
def test_the_last_rungs_at_their_own_tiles(ladder: Ladder) -> None:
    rows = by_rung(ladder("v5", "v6", "v7", "v8", "--chip", "v6e", "--sizes", "4096", "--no-check"))
    times = [rows[name, 4096]["time_us"] for name in ("v5", "v6", "v7", "v8")]
    assert times == sorted(times, reverse=True)
    spec = MatmulSpec.of(4096, 4096, 4096, "bfloat16")
    for name in ("v6", "v7", "v8"):
        moved = hbm_bytes(spec, Tiles(tile_m=2048, tile_k=512, tile_n=2048))
        assert rows[name, 4096]["hbm_bytes"] == moved
        assert moved < rows["v5", 4096]["hbm_bytes"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chip", ["v4", "v5p", "v6e", "v7x"])
def test_other_chips(ladder: Ladder, chip: str) -> None:
    names = ("v3", "v5", "v6", "v7", "v8")
    rows = by_rung(ladder(*names, "--chip", chip, "--sizes", "512", "--no-check"))
    for name in names:
        if chip == "v4" and name in ("v6", "v7", "v8"):
            assert rows[name, 512]["status"] == "illegal"
            assert "not-on-this-chip" in rows[name, 512]["reason"]
            continue
        assert rows[name, 512]["status"] == "ok"
        assert rows[name, 512]["ratio_to_xla"] > 0
    assert rows["v5", 512]["time_us"] < rows["v3", 512]["time_us"]


@pytest.mark.exhaustive
def test_a_sweep_and_a_second_run(ladder: Ladder) -> None:
    arguments = ("v4", "--chip", "v5e", "--dtype", "bfloat16", "--sizes", "512", "--sweep", "--sweep-trials", "3")
    (first,) = ladder(*arguments)["rows"]
    times = [trial["simulated_us"] for trial in first["trials"]]
    assert len(times) == 3
    assert first["time_us"] == min(times)
    assert "won of 3" in first["reason"]
    (second,) = ladder(*arguments)["rows"]
    # The same programs: from the cache, down to the seconds that compiling them once took.
    assert second == first


# A shell starts what it runs in the background deaf to Ctrl-C, and children stay so.
HEARING_CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from systolic.cli import main
sys.exit(main())
"""


@pytest.mark.exhaustive
def test_ctrl_c_stops_everything(cache: Path) -> None:
    environment = {**os.environ, "SYSTOLIC_CACHE_DIR": str(cache / "other")}
    command = [sys.executable, "-c", HEARING_CTRL_C, "ladder", "v1", "--dtype=float32", "--sizes=2048", "--no-check"]
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    workers: list[int] = []
    for _ in range(300):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        workers = [
            int(pid) for task in children.parent.parent.iterdir() for pid in (task / "children").read_text().split()
        ]
        if workers:
            break
        time.sleep(0.05)
    assert workers
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    for pid in workers:
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]
