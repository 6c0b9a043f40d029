"""`systolic tpu` with a gcloud that is not there: what it calls, what it says, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_cloud import FakeCloud, names

pytestmark = pytest.mark.usefixtures("ctrl_c")

Run = Callable[..., tuple[int, str, str]]

TUNE = ("--", "tune", "512,512,512", "--chip", "v6e", "--measure", "2")
CHIPS = ("--", "chips", "v5e")


def test_a_machine_is_made_and_said_to_cost_money(tpu: Run, cloud: FakeCloud) -> None:
    code, _, err = tpu("create", "my-tpu", "--chip", "v6e", "--zone", "us-east5-b", "--project", "mine", "--spot")
    assert code == 0
    assert cloud.calls[0] == [
        *("compute", "tpus", "tpu-vm", "create", "my-tpu", "--zone=us-east5-b", "--project=mine"),
        *("--accelerator-type=v6e-1", "--version=v2-alpha-tpuv6e", "--spot"),
    ]
    assert "is there (READY), and costs money until it is deleted" in err
    assert "systolic tpu remove my-tpu --zone=us-east5-b --project=mine" in err


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("quota", "no quota: try --spot"),
        ("capacity", "try another --zone"),
        ("taken", "take another name"),
        ("signed_out", "gcloud auth login"),
    ],
)
def test_a_refusal_is_one_line(tpu: Run, cloud: FakeCloud, how: str, said: str) -> None:
    cloud.fail(create=[how])
    code, out, err = tpu("create", "my-tpu")
    assert (code, out) == (1, "")
    making, line = err.splitlines()
    assert making.startswith("making my-tpu")
    assert line.startswith("systolic: ")
    assert said in line
    assert "tpu remove my-tpu" not in err


@pytest.mark.parametrize("how", ["lost", "interrupt", "forbidden"])
@pytest.mark.parametrize("made", [True, False])
def test_what_may_be_in_the_making_is_said(tpu: Run, cloud: FakeCloud, how: str, made: bool) -> None:
    if made:
        cloud.add("my-tpu", state="CREATING")
    cloud.fail(create=[how])
    code, _, err = tpu("create", "my-tpu")
    assert code == (130 if how == "interrupt" else 1)
    assert ("is there (CREATING), and costs money" if made else "nothing costs money") in err
    assert ("systolic tpu remove my-tpu" in err) == made


@pytest.mark.parametrize("arguments", [("create", "x"), ("ssh", "x"), ("remove", "x", "-y"), ("run", "x", *CHIPS)])
def test_without_gcloud_the_way_to_it_is_named(
    tpu: Run, tpu_work: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    code, out, err = tpu(*arguments)
    assert (code, out) == (1, "")
    assert "https://cloud.google.com/sdk/docs/install" in err
    assert names(tpu_work) == ["kernels", "kernels/mine.py"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "My_TPU"), "is not a name of a machine"),
        (("create", "--", "--zone"), "is not a name of a machine"),
        (("create", "x", "--chip", "v9"), "choose from v4"),
        (("create", "x", "--chip", "v7x"), "Compute Engine"),
        (("create", "x", "--chip", "v5e", "--accelerator-type", "v6e-1"), "disagree"),
        (("create", "x", "--accelerator-type", "v99-1"), "--runtime-version"),
        (("run", "x"), "COMMAND"),
        (("run", "x", "--spot", *CHIPS), "--create"),
        (("run", "x", "--", "dance"), "not a command"),
        (("run", "x", "--", "tpu", "remove", "x"), "not a command"),
        (("run", "x", "--", "bench", "--suite", "squar"), "systolic bench"),
        (("run", "x", "--", "chips", "--json", "/tmp/chips.json"), "/tmp/chips.json is not there"),
        (("run", "x", "--", "chips", "--json=../chips.json"), "../chips.json is not there"),
    ],
)
def test_a_wrong_call_costs_nothing(
    tpu: Run, cloud: FakeCloud, tpu_work: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = tpu(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert cloud.calls == []
    assert names(tpu_work) == ["kernels", "kernels/mine.py"]


@pytest.mark.parametrize(
    ("arguments", "verbs"),
    [
        (("create", "x"), ["create"]),
        (("ssh", "x"), ["ssh"]),
        (("remove", "x"), ["delete"]),
        (("run", "x", *CHIPS), ["describe", "scp", "ssh", "scp"]),
        (
            ("run", "x", "--create", "--delete-after", *TUNE),
            ["describe", "create", "describe", "scp", "ssh", "scp", "delete"],
        ),
    ],
)
def test_a_dry_run_prints_and_runs_nothing(
    tpu: Run, cloud: FakeCloud, tpu_work: Path, arguments: tuple[str, ...], verbs: list[str]
) -> None:
    command, *rest = arguments
    code, out, err = tpu(command, "--dry-run", *rest)
    assert (code, err, cloud.calls) == (0, "", [])
    assert [line.split()[4] for line in out.splitlines()] == verbs
    assert ("--accelerator-type=v6e-1" in out) == (rest[-7:] == [*TUNE])  # the chip that the command names
    assert names(tpu_work) == ["kernels", "kernels/mine.py"]


def test_what_a_dry_run_prints_is_what_is_called(tpu: Run, cloud: FakeCloud) -> None:
    _, out, _ = tpu("create", "x", "--runtime-version", "it's $HOME", "--accelerator-type", "v6e-1", "--dry-run")
    tpu("create", "x", "--runtime-version", "it's $HOME", "--accelerator-type", "v6e-1")
    subprocess.run(["bash", "-c", out], check=True, capture_output=True)
    assert cloud.calls[0] == cloud.calls[-1]


def test_removing_asks(tpu: Run, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.add("my-tpu")
    for answer, code, left in (("n\n", 1, ["my-tpu"]), ("", 1, ["my-tpu"]), ("y\n", 0, [])):
        reading, writing = os.pipe()
        os.write(writing, answer.encode())
        os.close(writing)
        with os.fdopen(reading) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            got, _, err = tpu("remove", "my-tpu")
        assert (got, cloud.machines) == (code, left)
        assert "delete my-tpu?" in err
        assert ("costs money" in err) == bool(left)
    code, _, err = tpu("remove", "my-tpu", "--yes")
    assert code == 1
    assert "there is no my-tpu in that zone" in err


def test_a_shell_says_that_the_machine_goes_on(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    code, _, err = tpu("ssh", "my-tpu", "--", "-L", "8888:localhost:8888")
    assert code == 0
    assert cloud.calls[0] == ["compute", "tpus", "tpu-vm", "ssh", "my-tpu", "--", "-L", "8888:localhost:8888"]
    assert "systolic tpu remove my-tpu" in err


@pytest.mark.parametrize("command", [(), ("create",), ("ssh",), ("remove",), ("run",)])
def test_help_has_an_example(tpu: Run, command: tuple[str, ...]) -> None:
    code, out, _ = tpu(*command, "--help")
    assert code == 0
    assert "Examples:\n    systolic tpu" in out
