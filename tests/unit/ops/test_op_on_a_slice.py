"""A product that is cut over a slice: its plan, what a store keeps it under, and meshes that are refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from expert.op import ExpertOp
from expert.spec import ExpertSpec

import systolic
from systolic.chips import SliceError
from systolic.cli import main
from systolic.ops import op
from systolic.spec import SliceMesh
from systolic.store import Subject, read_subject
from systolic.support.untrusted import UntrustedError

ALONE = ExpertSpec(m=256, k=128, n=512, experts=4, dtype="bfloat16")
SLICED = dataclasses.replace(ALONE, slice_mesh=SliceMesh.of("2x2", data=2, model=2))


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    importlib.import_module("systolic.ops.registry")  # else its ops would register in the copy, and go with it
    for known in ("_OPS", "_KEPT"):
        monkeypatch.setattr(op, known, dict(getattr(op, known)))
    op.register(ExpertOp())
    with systolic.use(store=None):
        yield


def test_it_is_planned_for_one_device_s_part() -> None:
    alone, sliced = systolic.plan(ALONE, "v6e"), systolic.plan(SLICED, "v6e")
    assert (alone.mesh, alone.link_bytes) == (None, 0)
    assert (sliced.mesh, sliced.link_bytes) == (SLICED.slice_mesh, 2 * 256 * 128 * 3)
    assert sliced.mxu_us == alone.mxu_us / 4
    assert sliced.grid == (1, 1)
    assert "on v6e 2x2 over data=2,model=2" in str(sliced)
    assert "over links" not in str(alone)


def test_a_mesh_has_all_devices_of_a_slice_that_the_chip_has() -> None:
    short = dataclasses.replace(ALONE, slice_mesh=SliceMesh.of("2x2", model=2))
    with pytest.raises(SliceError, match="a mesh with model=2 has 2 devices, and a slice 2x2 of v6e has 4"):
        systolic.plan(short, "v6e")
    with pytest.raises(SliceError, match="v7x has 3 dimensions"):
        systolic.plan(SLICED, "v7x")
    with pytest.raises(SliceError, match="leave `measured` out"):
        systolic.tune(SLICED, "v6e", measured=1)


def test_trials_of_a_slice_are_kept_apart(tmp_path: Path) -> None:
    larger = dataclasses.replace(ALONE, slice_mesh=SliceMesh.of("2x4", data=2, model=4))
    subjects = [Subject.here(spec, "v6e") for spec in (ALONE, SLICED, larger)]
    assert len({subject.key for subject in subjects}) == 3
    assert "spec.slice_mesh.topology: 2x4 in place of 2x2" in subjects[1].differences(subjects[2])
    for subject in subjects:
        assert read_subject(json.loads(subject.as_json())) == subject
    record = json.loads(subjects[1].as_json())
    record["spec"]["slice_mesh"]["topology"] = "2x2x2"
    with pytest.raises(UntrustedError, match="a slice of v6e has 2 dimensions"):
        read_subject(record)


def test_the_command_says_what_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = tmp_path / "spec.json"
    described.write_text(json.dumps(op.record_of(SLICED)))
    assert main(["plan", "--spec", str(described), "--chip", "v6e"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on v6e 2x2 over data=2,model=2" in out
    assert "0.2 MB from each device" in out
