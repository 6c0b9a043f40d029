"""`systolic tune` with the real compiler: it finds, keeps and goes on; on a Dask cluster too, also if a worker dies."""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import systolic
from systolic.cli import main
from systolic.store import TrialStore
from systolic.tuning import cluster, tune


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "tuned-programs"))


def tuned(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    target = tmp_path / "tuned.json"
    store = ("--store", str(tmp_path / "trials.sqlite"))
    assert main(["tune", "512,1024,768", "--chip", "v5e", *store, *arguments, "--json", str(target), "-q"]) == 0
    return json.loads(target.read_text())


@pytest.mark.exhaustive
def test_it_finds_keeps_and_goes_on(tmp_path: Path) -> None:
    document = tuned(tmp_path, "--trials", "3", "--plot", str(tmp_path / "trials.png"))
    (row,) = document["rows"]
    assert document["summary"]["winner"]["time_us"] == row["winner"]["time_us"]
    assert (row["compiled"], len(row["trials"]), row["end"]) == (3, 3, "trials")
    times = [trial["simulated_us"] for trial in row["trials"]]
    assert row["winner"]["time_us"] == min(times)
    assert row["ratio_to_xla"] == pytest.approx(row["xla_us"] / min(times))
    assert (tmp_path / "trials.png").stat().st_size > 10_000
    # The second time nothing is compiled, and one more trial is one more.
    assert tuned(tmp_path, "--trials", "3")["rows"][0]["compiled"] == 0
    more = tuned(tmp_path, "--trials", "4")["rows"][0]
    assert (more["compiled"], len(more["trials"])) == (1, 4)


def test_what_it_finds_is_what_matmul_then_runs(tmp_path: Path) -> None:
    spec = systolic.MatmulSpec.of(512, 1024, 768, "bfloat16")
    result = tune(spec, "v5e", trials=2, against_xla=False, store=TrialStore(tmp_path / "trials.sqlite"))
    assert result.winner is not None
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 1024), (1024, 768))]

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return systolic.matmul(lhs, rhs, tiles=result.config, implementation="pallas", chip="v5e")

    assert systolic.simulate(product, *shapes, chip="v5e").time_us == pytest.approx(result.winner.time_us)
    assert systolic.plan(spec, "v5e", tiles=result.config).config == result.config


@pytest.fixture
def dask_cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made


@pytest.mark.exhaustive
def test_a_cluster_finds_the_same_though_a_worker_dies(tmp_path: Path, dask_cluster: Any) -> None:
    distributed = pytest.importorskip("distributed")
    spec = systolic.MatmulSpec.of(512, 1024, 768, "bfloat16")
    alone = tune(spec, "v5e", trials=4, workers=1, store=TrialStore(tmp_path / "alone.sqlite"))
    killed: list[str] = []

    def kill_the_busy_one() -> None:
        while not killed:
            for address, jobs in observer.processing().items():
                if jobs and not killed:
                    time.sleep(0.3)  # it is in the middle of it
                    worker = next(one for one in dask_cluster.workers.values() if one.worker_address == address)
                    os.kill(worker.pid, signal.SIGKILL)
                    killed.append(address)
            time.sleep(0.01)

    store = TrialStore(tmp_path / "together.sqlite")
    with (
        distributed.Client(dask_cluster.scheduler_address, set_as_default=False) as observer,
        cluster(dask_cluster.scheduler_address) as (submit, at_once),
    ):
        assert at_once == 2
        killer = threading.Thread(target=kill_the_busy_one)
        killer.start()
        result = tune(spec, "v5e", trials=4, workers=1, submit=submit, store=store)
        killer.join()
    assert [one.status for one in result.trials] == ["ok"] * 4
    assert result.trials == alone.trials


def test_no_scheduler_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("systolic.tuning.cluster"), "_CONNECT_S", 1)
    store = ("--store", str(tmp_path / "trials.sqlite"))
    assert main(["tune", "512,512,512", *store, "--scheduler", "tcp://127.0.0.1:1", "-q"]) == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in capsys.readouterr().err
