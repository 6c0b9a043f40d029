"""CONTRIBUTING's recipe for an op, followed by the folder `expert`: systolic works on it without knowing it."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cloudpickle
import expert
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expert.kernel import by_pallas
from expert.op import ExpertOp
from expert.programs import by_xla
from expert.spec import ExpertSpec
from jax.experimental.pallas import tpu as pltpu

import systolic
from systolic.cli import main
from systolic.ops import op
from systolic.schedule import IllegalTilesError, Tiles
from systolic.spec import SliceMesh
from systolic.store import StoreWarning, TrialStore

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler: pip install 'systolic[tpu]'"
)

SPEC = ExpertSpec(m=512, k=512, n=512, experts=4, dtype="bfloat16")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "expert-programs"))
    importlib.import_module("systolic.ops")  # else its ops would register in the copy, and go with it
    for known in ("_OPS", "_KEPT"):
        monkeypatch.setattr(op, known, dict(getattr(op, known)))
    op.register(ExpertOp())
    cloudpickle.register_pickle_by_value(expert)  # workers cannot import what lies beside tests
    yield
    cloudpickle.unregister_pickle_by_value(expert)


def test_the_kernel_is_right() -> None:
    random = np.random.default_rng(0)
    spec = ExpertSpec(m=256, k=128, n=256, experts=3, dtype="float32")
    _, *shapes = ExpertOp().programs(spec, systolic.chip("v5e")).arguments
    arrays = [random.integers(-3, 4, shape.shape).astype(np.float32) for shape in shapes]
    lhs, gate, up = (array.astype(np.float64) for array in arrays)
    expected = np.maximum(lhs @ gate[2], 0) * (lhs @ up[2])
    given = [jnp.array([2], jnp.int32), *map(jnp.asarray, arrays)]
    tiles = Tiles(tile_m=128, tile_k=128, tile_n=128)
    np.testing.assert_array_equal(by_pallas(*given, tiles=tiles, interpret=pltpu.InterpretParams()), expected)
    np.testing.assert_array_equal(jax.jit(by_xla)(*given), expected)


def test_it_is_planned() -> None:
    made = systolic.plan(SPEC, "v5e")
    assert (made.provenance, made.considered, made.axes, made.grid) == ("modelled", 2, ("m", "n"), (2, 2))
    assert "4 experts" in str(made)
    assert "two products of the same rows" in made.reason
    assert systolic.plan(SPEC, "v5e", tiles=Tiles(tile_m=128, tile_k=512, tile_n=256)).grid == (4, 2)
    with pytest.raises(IllegalTilesError):
        systolic.plan(SPEC, "v5e", tiles=Tiles(tile_m=100, tile_k=512, tile_n=256))


@pytest.mark.exhaustive
def test_it_is_tuned_kept_and_raced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    result = systolic.tune(SPEC, "v5e", store=store)
    assert [trial.status for trial in result.trials] == ["ok", "ok"]
    assert result.xla is not None
    assert result.ratio_to_xla == pytest.approx(result.xla_us / result.winner.time_us)  # type: ignore[union-attr]
    ((subject, trials),) = store.records()
    assert (subject.op, subject.spec, len(trials)) == ("expert", SPEC, 3)
    with systolic.use(store=store):
        made = systolic.plan(SPEC, "v5e")
    assert (made.provenance, made.config, made.time_us) == ("simulated", result.config, result.winner.time_us)  # type: ignore[union-attr]
    # The same by the command line: the second search has nothing left to compile.
    described, file = tmp_path / "spec.json", ("--store", str(store.file))
    described.write_text(json.dumps(op.record_of(SPEC)))
    assert main(["plan", "--spec", str(described), "--chip", "v5e", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["op"], row["grid"]) == ("expert", [2, 2])
    again = tmp_path / "again.json"
    again.write_text(json.dumps(row))  # a row describes its spec too
    for command in (["plan"], ["tune", *file, "-q"]):
        assert main([*command, "--spec", str(again), "--chip", "v5e"]) == 0
        assert "of 4 experts" in capsys.readouterr().out
    assert main(["tune", *file, "-q", "--spec", str(described), "--chip", "v5e", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["compiled"], len(row["trials"])) == (0, 2)
    for command in (["show", *file], ["diff", str(store.file), str(store.file)]):
        assert main(["table", *command]) == 0
    assert "4 experts" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_it_is_raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SYSTOLIC_STORE", str(tmp_path / "trials.sqlite"))
    described, saved = tmp_path / "spec.json", tmp_path / "raced.json"
    described.write_text(json.dumps(op.record_of(SPEC)))
    assert main(["bench", "--spec", str(described), "--chip", "v5e", "-q", "--json", str(saved)]) == 0
    (row,) = json.loads(saved.read_text())["rows"]
    assert (row["op"], row["status"], row["m"], row["precision"]) == ("expert", "ok", 512, None)
    # Both products cross the matrix unit, and both weights of one expert cross HBM, in either program.
    least_us = max(row["model_mxu_us"], row["model_hbm_us"])
    assert least_us < min(row["ours_us"], row["xla_us"] + row["xla_prefetch_us"])
    assert row["least_hbm_bytes"] == SPEC.least_hbm_bytes <= row["hbm_bytes"]
    assert row["ratio"] == pytest.approx(row["xla_repeated_us"] / row["ours_us"])
    assert main(["bench", "--from", str(saved)]) == 0
    assert "4 experts" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_it_is_tuned_and_raced_on_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(SPEC, m=128, k=128, slice_mesh=SliceMesh.of("2x2", model=4))
    store = TrialStore(tmp_path / "trials.sqlite")
    monkeypatch.setenv("SYSTOLIC_STORE", str(store.file))
    result = systolic.tune(spec, "v6e", store=store)
    assert [trial.status for trial in result.trials] == ["ok"]
    assert result.xla is not None
    assert result.xla.status == "ok"
    v6e = systolic.chip("v6e")
    assert v6e.links is not None
    # A device has two neighbors, and so two links to send over.
    least_us = spec.link_bytes / (2 * v6e.links.bytes_per_s) * 1e6
    winner_us = result.winner.time_us if result.winner is not None else None
    assert winner_us is not None
    assert winner_us > least_us
    ((subject, _),) = store.records()
    assert subject.spec == spec
    assert systolic.plan(spec, "v6e").provenance == "simulated"
    described, saved = tmp_path / "spec.json", tmp_path / "raced.json"
    described.write_text(json.dumps(op.record_of(spec)))
    assert main(["bench", "--spec", str(described), "--chip", "v6e", "-q", "--json", str(saved)]) == 0
    (row,) = json.loads(saved.read_text())["rows"]
    assert (row["topology"], row["mesh"], row["status"]) == ("2x2", "model=4", "ok")
    assert row["ours_us"] == winner_us  # the same program, by either command
    assert row["ours_exposed_us"] > 0
    capsys.readouterr()


@pytest.mark.exhaustive
def test_who_does_not_know_the_op_leaves_its_trials_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrialStore(tmp_path / "trials.sqlite")
    systolic.tune(SPEC, "v5e", store=store, against_xla=False)
    for known in ("_OPS", "_KEPT"):
        others = {kind: one for kind, one in getattr(op, known).items() if one.name != "expert"}
        monkeypatch.setattr(op, known, others)
    with pytest.warns(StoreWarning, match="op 'expert' is unknown; choose from .*matmul"):
        assert store.records() == []
