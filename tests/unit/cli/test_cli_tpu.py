"""`systolic tpu` with a gcloud that is not there: what it calls, what it says, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_cloud import FakeCloud

pytestmark = pytest.mark.usefixtures("ctrl_c")

Run = Callable[..., tuple[int, str, str]]

TUNE = ("--", "tune", "512,512,512", "--chip", "v6e", "--measure", "2")
CHIPS = ("--", "chips", "v5e")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_machine_is_made_and_said_to_cost_money(tpu: Run, cloud: FakeCloud) -> None:
    code, out, err = tpu("create", "my-tpu", "--chip", "v6e", "--zone", "us-east5-b", "--project", "mine", "--spot")
    assert code == 0
    assert cloud.calls == [
        [
            *("compute", "tpus", "tpu-vm", "create", "my-tpu", "--zone=us-east5-b", "--project=mine"),
            *("--accelerator-type=v6e-1", "--version=v2-alpha-tpuv6e", "--spot"),
        ]
    ]
    assert "costs money until it is deleted" in out
    assert "systolic tpu delete my-tpu --zone=us-east5-b --project=mine" in out
    assert "Create request issued" in err


def test_a_queued_request_prints_its_state(tpu: Run, cloud: FakeCloud) -> None:
    code, out, _ = tpu("create", "my-tpu", "--queued")
    assert code == 0
    assert [call[2:4] for call in cloud.calls] == [["queued-resources", "create"], ["queued-resources", "describe"]]
    assert "--node-id=my-tpu" in cloud.calls[0]
    assert "queued: WAITING_FOR_RESOURCES" in out
    assert "costs money from the moment that it is ACTIVE" in out


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("quota", "quota does not allow my-tpu"),
        ("quota", "Limit: 0"),
        ("capacity", "--queued"),
        ("taken", "take another name"),
        ("signed_out", "gcloud auth login"),
        ("forbidden", "Cloud TPU API has not been used"),
    ],
)
def test_what_cannot_be_made_says_why(tpu: Run, cloud: FakeCloud, how: str, said: str) -> None:
    cloud.fail(create=[how])
    code, out, err = tpu("create", "my-tpu")
    assert (code, out) == (1, "")
    assert said in err
    assert "still there" not in err


@pytest.mark.parametrize("how", ["lost", "interrupt"])
@pytest.mark.parametrize("made", [True, False])
def test_what_may_be_in_the_making_is_said(tpu: Run, cloud: FakeCloud, how: str, made: bool) -> None:
    if made:
        cloud.add("my-tpu", state="CREATING")
    cloud.fail(create=[how])
    code, _, err = tpu("create", "my-tpu")
    assert code == (1 if how == "lost" else 130)
    assert ("still there (CREATING), and costs money" if made else "nothing costs money") in err
    assert ("systolic tpu delete my-tpu" in err) == made


@pytest.mark.parametrize("arguments", [("create", "x"), ("list",), ("ssh", "x"), ("delete", "x"), ("run", "x", *CHIPS)])
@pytest.mark.usefixtures("work")
def test_without_gcloud_the_way_to_it_is_named(
    tpu: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    code, out, err = tpu(*arguments)
    assert (code, out) == (1, "")
    assert "https://cloud.google.com/sdk/docs/install" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "My_TPU"), "is no name of a machine"),
        (("create", "--", "--zone"), "is no name of a machine"),
        (("create", "x", "--chip", "v9"), "known are v4"),
        (("create", "x", "--chip", "v7x"), "Compute Engine"),
        (("create", "x", "--chip", "v5e", "--accelerator-type", "v6e-1"), "disagree"),
        (("create", "x", "--accelerator-type", "v99-1"), "--runtime-version"),
        (("run", "x"), "--resume"),
        (("run", "x", "--resume", *CHIPS), "--resume"),
        (("run", "x", "--resume", "--create"), "neither"),
        (("run", "x", "--spot", *CHIPS), "--create"),
        (("run", "x", "--", "dance"), "no command"),
        (("run", "x", "--", "tpu", "list"), "no command"),
        (("run", "x", "--", "bench", "--suite", "squar"), "systolic bench"),
        (("run", "x", "--", "chips", "--json", "/tmp/chips.json"), "/tmp/chips.json is not there"),
        (("run", "x", "--", "chips", "--json=../chips.json"), "../chips.json is not there"),
        (("run", "x", "--create", "--chip", "v5e", *TUNE), "v5litepod-1 has v5e"),
    ],
)
@pytest.mark.usefixtures("work")
def test_a_wrong_call_costs_nothing(tpu: Run, cloud: FakeCloud, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = tpu(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert cloud.calls == []


@pytest.mark.parametrize(
    ("arguments", "verbs"),
    [
        (("create", "x", "--queued"), ["create"]),
        (("list",), ["list", "list"]),
        (("ssh", "x"), ["ssh"]),
        (("delete", "x"), ["describe", "delete"]),
        (("delete", "x", "--queued"), ["delete"]),
        (("run", "x", *CHIPS), ["describe", "scp", "ssh", "scp"]),
        (("run", "x", "--resume"), ["describe", "ssh", "scp"]),
        (
            ("run", "x", "--create", "--delete-after", *TUNE),
            ["describe", "create", "describe", "scp", "ssh", "scp", "delete"],
        ),
    ],
)
def test_a_dry_run_prints_and_runs_nothing(
    tpu: Run, cloud: FakeCloud, work: Path, arguments: tuple[str, ...], verbs: list[str]
) -> None:
    command, *rest = arguments
    code, out, err = tpu(command, "--dry-run", *rest)
    assert (code, err, cloud.calls) == (0, "", [])
    assert [line.split()[4] for line in out.splitlines()] == verbs
    assert not (work / "tpu-results").exists()


def test_what_a_dry_run_prints_is_what_is_called(tpu: Run, cloud: FakeCloud) -> None:
    _, out, _ = tpu("create", "x", "--runtime-version", "it's $HOME", "--accelerator-type", "v6e-1", "--dry-run")
    tpu("create", "x", "--runtime-version", "it's $HOME", "--accelerator-type", "v6e-1")
    subprocess.run(["bash", "-c", out], check=True, capture_output=True)
    assert cloud.calls[0] == cloud.calls[1]


def test_machines_and_requests_are_listed(tpu: Run, cloud: FakeCloud) -> None:
    assert "no machines" in tpu("list")[1]
    cloud.add("one")
    cloud.add("two", state="PREEMPTED", schedulingConfig={"spot": True}, queuedResource="projects/mine/…/two")
    cloud.add_request("two", "SUSPENDED")
    cloud.add_request("three", "WAITING_FOR_RESOURCES")
    code, out, _ = tpu("list", "--zone", "us-west4-a")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [
        ["one", "machine"],
        ["two", "machine"],
        ["three", "request"],
    ]
    assert "1 of 3 cost money until deleted" in out
    rows = json.loads(tpu("list", "--json", "-")[1])["rows"]
    assert [(row["name"], row["state"], row["spot"], row["costs_money"]) for row in rows] == [
        ("one", "READY", False, True),
        ("two", "PREEMPTED", True, False),
        ("three", "WAITING_FOR_RESOURCES", True, False),
    ]
    assert rows[0]["accelerator_type"] == "v5litepod-1"
    assert {row["zone"] for row in rows} == {"us-west4-a"}


def test_deleting_asks(tpu: Run, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.add("my-tpu")
    for answer, code, left in (("n\n", 1, ["my-tpu"]), ("", 1, ["my-tpu"]), ("y\n", 0, [])):
        reading, writing = os.pipe()
        os.write(writing, answer.encode())
        os.close(writing)
        with os.fdopen(reading) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            got, _, err = tpu("delete", "my-tpu")
        assert (got, cloud.machines) == (code, left)
        assert "delete machine my-tpu (v5litepod-1, READY, us-west4-a)?" in err
        assert ("costs money" in err) == bool(left)


def test_a_queued_machine_goes_with_its_request(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu", queuedResource="projects/mine/locations/us-west4-a/queuedResources/asked")
    cloud.add_request("asked", "ACTIVE")
    cloud.add_request("waits", "ACCEPTED")
    assert tpu("delete", "my-tpu", "-y")[0] == 0
    assert cloud.calls[-1][2:] == ["queued-resources", "delete", "asked", "--force", "--quiet"]
    assert tpu("delete", "waits", "-y")[0] == 0
    assert cloud.requests == []


def test_a_machine_that_is_not_there_cannot_be_deleted(tpu: Run, cloud: FakeCloud) -> None:
    code, _, err = tpu("delete", "my-tpu", "--yes")
    assert code == 1
    assert "there is no my-tpu in that zone" in err
    assert "delete" not in cloud.verbs


def test_a_deletion_that_fails_is_loud(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    cloud.fail(delete=["forbidden"])
    code, _, err = tpu("delete", "my-tpu", "--yes", "--zone", "us-west4-a")
    assert code == 1
    assert "COULD NOT BE DELETED" in err
    assert "    gcloud compute tpus tpu-vm delete my-tpu --zone=us-west4-a --quiet\n" in err


def test_a_shell_says_that_the_machine_goes_on(tpu: Run, cloud: FakeCloud) -> None:
    code, _, err = tpu("ssh", "my-tpu", "--", "-L", "8888:localhost:8888")
    assert code == 0
    assert cloud.calls == [["compute", "tpus", "tpu-vm", "ssh", "my-tpu", "--", "-L", "8888:localhost:8888"]]
    assert "systolic tpu delete my-tpu" in err
    cloud.fail(ssh=["lost"])
    code, _, err = tpu("ssh", "my-tpu")
    assert code == 1
    assert "the connection to my-tpu broke" in err


@pytest.mark.parametrize("command", [(), ("create",), ("list",), ("ssh",), ("delete",), ("run",)])
def test_help_has_an_example(tpu: Run, command: tuple[str, ...]) -> None:
    code, out, _ = tpu(*command, "--help")
    assert code == 0
    assert "Examples:\n    systolic tpu" in out
