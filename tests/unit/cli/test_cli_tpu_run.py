"""`systolic tpu run` with a gcloud that is not there: what goes there, what comes back, and what stays behind."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_cloud import FakeCloud

import systolic
from systolic.cloud import remote

pytestmark = pytest.mark.usefixtures("ctrl_c")

Run = Callable[..., tuple[int, str, str]]

TUNE = ("--", "tune", "512,512,512", "--chip", "v6e", "--measure", "2")
CHIPS = ("--", "chips", "v5e")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project, tracked by git but for one file; systolic is not installed from a checkout."""
    folder = tmp_path / "work"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "mine.py").write_text("x = 1\n")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "add", "kernels/mine.py"], check=True)
    (folder / "forgotten.py").write_text("y = 2\n")
    monkeypatch.chdir(folder)
    installed = tmp_path / "site-packages" / "systolic" / "__init__.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(systolic, "__file__", str(installed))
    return folder


def test_a_command_runs_there_and_its_results_come_back(tpu: Run, cloud: FakeCloud, work: Path) -> None:
    cloud.install_real()
    cloud.add("my-tpu")
    code, out, err = tpu("run", "my-tpu", "--", "chips", "v5e", "--json", "new/chips, of mine.json")
    assert code == 0
    assert cloud.verbs == ["describe", "scp", "ssh", "scp"]
    assert "TPU v5 lite" in out
    assert "running systolic chips v5e" in err
    (folder,) = (work / "tpu-results" / "my-tpu").iterdir()
    assert json.loads((folder / "files" / "new" / "chips, of mine.json").read_text())["command"] == "chips"
    assert json.loads((folder / "run.json").read_text())["exit_code"] == 0
    assert (folder / "stdout.txt").read_text() == out
    assert sorted(path.name for path in folder.iterdir()) == ["files", "log.txt", "run.json", "stdout.txt"]
    # What went there: what git tracks, and no more.
    (job,) = (cloud.home / "systolic-run" / "jobs").iterdir()
    assert (job / "work" / "kernels" / "mine.py").exists()
    assert not (job / "work" / "forgotten.py").exists()
    assert "not copied, since git does not track them (git add does): forgotten.py" in err
    # systolic came along: nothing asks an index for it.
    (wheel,) = [word for word in cloud.installed[-1] if "systolic" in word and word.startswith("systolic[")]
    assert wheel.endswith(f"/{job.name}/systolic-{systolic.__version__}-py3-none-any.whl")
    assert "still there (READY), and costs money" in err
    assert "--resume" not in err


@pytest.mark.usefixtures("work")
def test_one_line_makes_measures_and_deletes(tpu: Run, cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS)
    assert code == 0
    assert cloud.verbs == ["describe", "create", "describe", "scp", "ssh", "scp", "delete"]
    assert "--accelerator-type=v5litepod-1" in cloud.calls[1]
    assert out == "ran chips v5e\n"
    assert err.endswith("deleted my-tpu\n")
    assert cloud.machines == []


@pytest.mark.usefixtures("cloud", "work")
def test_a_command_names_the_chip_of_its_machine(tpu: Run) -> None:
    assert "--accelerator-type=v6e-1" in tpu("run", "x", "--create", "--dry-run", *TUNE)[1]


def test_a_machine_with_another_chip_is_not_measured_on(tpu: Run, cloud: FakeCloud, work: Path) -> None:
    cloud.add("my-tpu")
    code, _, err = tpu("run", "my-tpu", *TUNE)
    assert code == 2
    assert "measures on v6e, but v5litepod-1 has v5e" in err
    assert "scp" not in cloud.verbs
    assert not list((work / "tpu-results" / "my-tpu").iterdir())


@pytest.mark.usefixtures("work")
def test_a_command_that_fails_gives_its_exit_code_and_the_machine_is_deleted(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    code, _, err = tpu("run", "my-tpu", "--delete-after", "--", "chips", "v9")
    assert code == 2
    assert "'v9' is not known" in err
    assert cloud.machines == []


def test_an_installation_that_fails_says_where_to_look(tpu: Run, cloud: FakeCloud, work: Path) -> None:
    cloud.add("my-tpu")
    (cloud.root / "no_network").touch()
    code, _, err = tpu("run", "my-tpu", *CHIPS)
    assert code == 1
    assert "could not be installed" in err
    (folder,) = (work / "tpu-results" / "my-tpu").iterdir()
    assert "failed to fetch" in (folder / "log.txt").read_text()


@pytest.mark.parametrize("verb", ["scp", "ssh"])
@pytest.mark.parametrize("how", ["lost", "interrupt"])
@pytest.mark.usefixtures("work")
def test_what_is_to_be_deleted_is_deleted_whatever_happens(tpu: Run, cloud: FakeCloud, verb: str, how: str) -> None:
    cloud.fail(**{verb: [how]})
    code, _, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS)
    assert code == (1 if how == "lost" else 130)
    assert cloud.machines == []
    assert "deleted my-tpu" in err


@pytest.mark.parametrize("how", ["forbidden", "lost", "interrupt"])
@pytest.mark.usefixtures("work")
def test_a_machine_that_stays_although_it_was_to_go_is_loud(tpu: Run, cloud: FakeCloud, how: str) -> None:
    cloud.fail(delete=[how])
    code, _, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS)
    assert code == 1
    assert "my-tpu COULD NOT BE DELETED" in err
    assert "    gcloud compute tpus tpu-vm delete my-tpu --quiet\n" in err


@pytest.mark.usefixtures("work")
def test_a_machine_of_others_is_not_deleted(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    code, _, err = tpu("run", "my-tpu", "--create", "--delete-after", *CHIPS)
    assert code == 1
    assert "leave --create out" in err
    cloud.fail(create=["quota", "taken"])
    assert [tpu("run", "other", "--create", "--delete-after", *CHIPS)[0] for _ in range(2)] == [1, 1]
    assert cloud.machines == ["my-tpu"]
    assert "delete" not in cloud.verbs


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"state": "PREEMPTED"}, "is PREEMPTED, not READY"), ({"networkEndpoints": [{}, {}]}, "is 2 hosts")],
)
@pytest.mark.usefixtures("work")
def test_a_machine_that_is_not_fit_says_why(tpu: Run, cloud: FakeCloud, fields: dict[str, object], said: str) -> None:
    cloud.add("my-tpu", **fields)
    code, _, err = tpu("run", "my-tpu", *CHIPS)
    assert code == 1
    assert said in err
    assert "scp" not in cloud.verbs


def test_a_lost_connection_says_how_to_go_on_and_it_goes_on(tpu: Run, cloud: FakeCloud, work: Path) -> None:
    cloud.add("my-tpu")
    cloud.fail(ssh=["lost"])
    code, out, err = tpu("run", "my-tpu", "--zone", "us-west4-a", *CHIPS)
    assert (code, out) == (1, "")
    assert "the connection to my-tpu broke" in err
    assert "my-tpu is still there (READY), and costs money" in err
    assert "systolic tpu run my-tpu --zone=us-west4-a --resume" in err
    assert "systolic tpu delete my-tpu --zone=us-west4-a" in err
    code, out, err = tpu("run", "my-tpu", "--resume")
    assert code == 0
    assert out == "ran chips v5e\n"
    (folder,) = (work / "tpu-results" / "my-tpu").iterdir()
    assert json.loads((folder / "run.json").read_text())["command"] == ["chips", "v5e"]


@pytest.mark.usefixtures("work")
def test_a_lost_connection_to_a_machine_taken_back(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    cloud.fail(ssh=["lost"], describe=["", "lost"])
    _, _, err = tpu("run", "my-tpu", *CHIPS)
    assert "assume so, and that it costs money" in err
    cloud.fail(ssh=["lost"], describe=["", "not_found"])
    _, _, err = tpu("run", "my-tpu", *CHIPS)
    assert "there is no machine my-tpu" in err
    cloud.add("my-tpu", state="PREEMPTED")
    code, _, err = tpu("run", "my-tpu", "--resume")
    assert code == 1
    assert "what ran on it is lost" in err


@pytest.mark.usefixtures("work")
def test_a_command_that_gcloud_tries_again_runs_once(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    cloud.fail(ssh=["twice"])
    code, out, _ = tpu("run", "my-tpu", *CHIPS)
    assert code == 0
    assert out == "ran chips v5e\n"
    assert sum(call[0] == "pip" for call in cloud.installed) == 1


@pytest.mark.usefixtures("work")
def test_without_a_command_there_is_none_to_resume(tpu: Run, cloud: FakeCloud) -> None:
    cloud.add("my-tpu")
    (cloud.home / "systolic-run").mkdir()
    (cloud.home / "systolic-run" / "remote.py").write_text(Path(remote.__file__).read_text())
    code, _, err = tpu("run", "my-tpu", "--resume")
    assert code == 1
    assert "no command was ever run here" in err


@pytest.fixture
def busy(cloud: FakeCloud) -> Iterator[subprocess.Popen[bytes]]:
    """Another command that runs on the machine."""
    folder = cloud.home / "systolic-run"
    folder.mkdir()
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True, pass_fds=(lock.fileno(),)
        )
    current = {"job": "earlier", "group": process.pid, "command": ["tune", "512,512,512"]}
    (folder / "current.json").write_text(json.dumps(current))
    yield process
    process.kill()
    process.wait()


@pytest.mark.usefixtures("work")
def test_two_commands_do_not_share_a_tpu(tpu: Run, cloud: FakeCloud, busy: subprocess.Popen[bytes]) -> None:
    cloud.add("my-tpu")
    time.sleep(0.2)
    code, _, err = tpu("run", "my-tpu", "--delete-after", *CHIPS)
    assert code == 1
    assert "still running: systolic tune 512,512,512" in err
    assert "--resume follows it, --replace stops it" in err
    assert cloud.machines == ["my-tpu"]
    code, out, _ = tpu("run", "my-tpu", "--replace", "--delete-after", *CHIPS)
    assert code == 0
    assert out == "ran chips v5e\n"
    assert busy.wait(timeout=10) != 0
    assert cloud.machines == []
