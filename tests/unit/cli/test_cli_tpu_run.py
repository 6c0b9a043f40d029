"""`systolic tpu run` with a gcloud that is not there: what goes there, what comes back, and what stays behind."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_cloud import FakeCloud, names

import systolic
from systolic.cloud import project

pytestmark = pytest.mark.usefixtures("ctrl_c")

Run = Callable[..., tuple[int, str, str]]

CHIPS = ("--", "chips", "v5e")


@pytest.mark.exhaustive
def test_a_command_runs_there_and_its_results_come_back(
    tpu: Run, cloud: FakeCloud, tpu_work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systolic, "__file__", str(Path(sys.modules["systolic.cli"].__file__ or "").parents[1] / "x.py"))
    cloud.install_real()
    cloud.add("my-tpu")
    code, out, err = tpu("run", "my-tpu", "--", "chips", "v5e", "--json", "new/chips, of mine.json")
    assert code == 0
    assert cloud.verbs == ["describe", "scp", "ssh", "scp", "describe"]
    assert "TPU v5 lite" in out
    assert "copying 1 files" in err
    (folder,) = (path for path in (tpu_work / "tpu-results" / "my-tpu").iterdir() if path.is_dir())
    assert f"results are in {folder.relative_to(tpu_work)}" in err
    assert names(folder) == ["files", "files/new", "files/new/chips, of mine.json"]
    document = json.loads((folder / "files" / "new" / "chips, of mine.json").read_text())
    assert document["versions"]["systolic"] == systolic.__version__
    assert "my-tpu is there (READY), and costs money" in err
    assert project._project_files(tpu_work) == ["kernels/mine.py"]  # results are no part of the next run's project


def test_one_line_makes_measures_and_deletes(tpu: Run, cloud: FakeCloud, tpu_work: Path) -> None:
    code, out, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS, "--json", "x.json")
    assert code == 0
    assert cloud.verbs == ["describe", "create", "describe", "scp", "ssh", "scp", "delete"]
    assert "--accelerator-type=v5litepod-1" in cloud.calls[1]
    assert out == "ran chips v5e --json x.json\n"
    assert err.endswith("deleted my-tpu\n")
    assert cloud.machines == []
    (folder,) = (path for path in (tpu_work / "tpu-results" / "my-tpu").iterdir() if path.is_dir())
    assert names(folder) == ["files", "files/x.json", "trials.sqlite"]


def test_a_command_that_fails_gives_its_exit_code_and_the_machine_is_deleted(
    tpu: Run, cloud: FakeCloud, tpu_work: Path
) -> None:
    cloud.add("my-tpu")
    code, _, err = tpu("run", "my-tpu", "--delete-after", "--", "chips", "v9")
    assert code == 2
    assert "'v9' is not known" in err
    assert "the command wrote no files" in err
    assert cloud.machines == []
    assert names(tpu_work / "tpu-results") == ["my-tpu", "my-tpu/.gitignore"]


@pytest.mark.usefixtures("tpu_work")
def test_an_installation_that_fails_says_why(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    (cloud.root / "no_network").touch()
    code, _, err = tpu("run", "my-tpu", *CHIPS)
    assert code == 1
    assert "failed to fetch" in err
    assert "systolic: my-tpu: systolic could not be installed there" in err


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_into_a_folder_of_the_users(tpu: Run, cloud: FakeCloud, tpu_work: Path, there: bool) -> None:
    """`--results .` wrote a .gitignore with `*` into the project, which git then ignored as a whole."""
    if there:
        (tpu_work / "my-tpu").mkdir()
        (tpu_work / "my-tpu" / "notes.txt").write_text("mine")
    before = names(tpu_work)
    cloud.add("my-tpu")
    assert tpu("run", "my-tpu", "--results", ".", *CHIPS, "--json", "x.json")[0] == 0
    (folder,) = (path for path in (tpu_work / "my-tpu").iterdir() if path.is_dir())
    new = {f"my-tpu/{folder.name}{rest}" for rest in ("", "/files", "/files/x.json", "/trials.sqlite")}
    assert set(names(tpu_work)) - set(before) == (new if there else {*new, "my-tpu", "my-tpu/.gitignore"})


@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("plan", [{"ssh": ["garbled"]}, {"scp": ["garbled"]}, {"scp": ["", "garbled"]}])
def test_a_garbled_answer_of_ssh_is_one_line(
    tpu: Run, cloud: FakeCloud, tpu_work: Path, plan: dict[str, list[str]], deletes: bool
) -> None:
    """It ended in scp's words and a `FileNotFoundError`, and said that the command went on."""
    cloud.add("my-tpu")
    cloud.fail(**plan)
    code, _, err = tpu("run", "my-tpu", *(("--delete-after",) if deletes else ()), *CHIPS)
    assert code == 1
    (line,) = (line for line in err.splitlines() if line.startswith("systolic: "))
    assert "Traceback" not in err
    if plan == {"ssh": ["garbled"]}:
        assert "my-tpu: no results came back, and the command may not have run: gcloud scp failed" in line
    assert cloud.machines == ([] if deletes else ["my-tpu"])
    assert ("deleted my-tpu" if deletes else "systolic tpu remove my-tpu") in err
    assert names(tpu_work / "tpu-results") == ["my-tpu", "my-tpu/.gitignore"]


@pytest.mark.parametrize("verb", ["scp", "ssh"])
@pytest.mark.parametrize("how", ["lost", "interrupt"])
@pytest.mark.usefixtures("tpu_work")
def test_what_is_to_be_deleted_is_deleted_whatever_happens(tpu: Run, cloud: FakeCloud, verb: str, how: str) -> None:
    cloud.fail(**{verb: [how]})
    code, _, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS)
    assert code == (130 if how == "interrupt" else 1)
    assert cloud.machines == []
    assert "deleted my-tpu" in err


@pytest.mark.parametrize("how", ["forbidden", "lost", "interrupt", "signed_out"])
@pytest.mark.usefixtures("tpu_work")
def test_a_machine_that_stays_although_it_was_to_go_is_loud(tpu: Run, cloud: FakeCloud, how: str) -> None:
    cloud.fail(delete=[how])
    code, _, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS)
    assert code == 1
    assert "my-tpu COULD NOT BE DELETED" in err
    assert "    gcloud compute tpus tpu-vm delete my-tpu --quiet\n" in err


@pytest.mark.usefixtures("tpu_work")
def test_a_machine_of_others_is_not_deleted(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    code, _, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS)
    assert code == 1
    assert "drop --create to use it" in err
    cloud.fail(create=["quota", "taken"])
    assert [tpu("run", "other", "--create", "--delete-after", *CHIPS)[0] for _ in range(2)] == [1, 1]
    assert cloud.machines == ["my-tpu"]
    assert "delete" not in cloud.verbs


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"state": "PREEMPTED"}, "is PREEMPTED, not READY"), ({"networkEndpoints": [{}, {}]}, "has 2 hosts")],
)
@pytest.mark.usefixtures("tpu_work")
def test_a_machine_that_is_not_fit_says_why(tpu: Run, cloud: FakeCloud, fields: dict[str, object], said: str) -> None:
    cloud.add("my-tpu", **fields)
    code, _, err = tpu("run", "my-tpu", *CHIPS)
    assert code == 1
    assert said in err
    assert "systolic tpu remove my-tpu" in err
    assert "scp" not in cloud.verbs


@pytest.mark.parametrize(
    ("describe", "said"),
    [
        (["", ""], "my-tpu is there (READY), and costs money"),
        (["", "lost"], "my-tpu may be there, and costs money"),
        (["", "garbled"], "my-tpu may be there, and costs money"),
        (["", "not_found"], "there is no machine my-tpu"),
    ],
)
def test_a_lost_connection_says_what_is_left(
    tpu: Run, cloud: FakeCloud, tpu_work: Path, describe: list[str], said: str
) -> None:
    cloud.add("my-tpu")
    cloud.fail(ssh=["lost"], describe=describe)
    code, _, err = tpu("run", "my-tpu", "--zone", "us-west4-a", *CHIPS)
    assert code == 1
    assert "the connection to my-tpu broke" in err
    assert said in err
    assert names(tpu_work / "tpu-results") == ["my-tpu", "my-tpu/.gitignore"]


@pytest.mark.usefixtures("tpu_work")
def test_a_command_that_gcloud_tries_again_runs_once(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    cloud.fail(ssh=["twice"])
    code, out, err = tpu("run", "my-tpu", *CHIPS)
    assert (code, out) == (1, "ran chips v5e\n")
    assert "the connection broke while the command ran" in err
    assert sum(call[0] == "pip" for call in cloud.installed) == 1


@pytest.fixture
def busy(cloud: FakeCloud) -> Iterator[None]:
    """Another command that runs on the machine."""
    with (cloud.home / "systolic.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("tpu_work", "busy")
def test_two_commands_do_not_share_a_tpu(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    code, out, err = tpu("run", "my-tpu", "--delete-after", *CHIPS)
    assert (code, out) == (1, "")
    assert "another command of systolic still runs there" in err
    assert cloud.machines == ["my-tpu"]
    assert "systolic tpu remove my-tpu" in err


@pytest.mark.usefixtures("tpu_work")
def test_a_disk_that_is_full_leaves_no_machine(tpu: Run, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    code, _, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS, "--json", "x.json")
    assert code == 1
    assert "systolic: [Errno 28] No space left on device" in err
    assert cloud.machines == []
