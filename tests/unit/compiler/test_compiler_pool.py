import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from processes import PATIENCE_S, is_running, wait_until

from systolic.compiler import CompilerError, TaskError, WorkerPool
from systolic.compiler.folders import make_worker_folder, sweep_worker_folders
from systolic.compiler.stage import FOLDER_VARIABLE, at_stage

pytestmark = pytest.mark.usefixtures("temporary")


def add(a, b):
    return a + b


def test_tasks_run_elsewhere_and_workers_are_used_again(pool):
    assert pool.submit(add, 2, 3).result() == 5
    first, second = pool.submit(os.getpid).result(), pool.submit(os.getpid).result()
    assert first == second != os.getpid()


def test_two_tasks_run_at_once(pool, tmp_path):
    def meet(mine, other):
        mine.touch()
        while not other.exists():
            time.sleep(0.01)
        return os.getpid()

    here, there = tmp_path / "here", tmp_path / "there"
    pids = [pool.submit(meet, here, there), pool.submit(meet, there, here)]
    assert len({future.result() for future in pids}) == 2


def test_closures_and_lambdas_work(pool):
    offset = 7

    class Local:
        def __init__(self, value):
            self.value = value

        def more(self):
            return self.value + offset

    assert pool.submit(lambda local: Local(local.more()), Local(1)).result().more() == 15


def test_functions_of_main_work(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from systolic.compiler import WorkerPool\n"
        "import beside\n"
        "print('started')\n"
        "def square(x):\n"
        "    return beside.identity(x) ** 2\n"
        "with WorkerPool() as pool:\n"
        "    print(pool.submit(square, 12).result())\n"
    )
    (tmp_path / "beside.py").write_text("def identity(x):\n    return x\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.splitlines() == ["started", "144"]


def test_modules_of_a_path_added_later_are_found(pool, tmp_path, monkeypatch):
    pool.submit(os.getpid).result()
    (tmp_path / "added_later.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import added_later  # pyright: ignore[reportMissingImports]

    assert pool.submit(added_later.answer).result() == 42


def test_exceptions_travel_with_their_traceback(pool):
    def fail():
        raise KeyError("missing thing")

    with pytest.raises(KeyError, match="missing thing") as caught:
        pool.submit(fail).result()
    assert any("in fail" in note for note in caught.value.__notes__)


def test_what_cannot_travel_arrives_as_text(pool):
    class Stubborn(Exception):  # noqa: N818 -- a name that no error class should have
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def fail():
        raise Stubborn("this", "that")

    with pytest.raises(TaskError, match="this and that") as caught:
        pool.submit(fail).result()
    assert "in fail" in caught.value.remote_traceback
    with pytest.raises(TaskError, match="which cannot be sent on"):
        pool.submit(threading.Lock).result()
    assert pool.submit(add, 1, 1).result() == 2


def test_printing_does_not_disturb(pool):
    def chatter():
        print("to standard output", flush=True)  # noqa: T201 -- that is the test
        subprocess.run(["echo", "a child too"], check=True)
        return "fine"

    assert pool.submit(chatter).result() == "fine"


def test_warnings_are_given_again_here(pool):
    with pytest.warns(UserWarning, match="mind the gap") as given:
        assert pool.submit(lambda: warnings.warn("mind the gap", stacklevel=1)).result() is None
    (warning,) = given
    assert warning.filename == __file__
    assert "mind the gap" in Path(__file__).read_text().splitlines()[warning.lineno - 1]


def test_large_messages(pool):
    data = os.urandom(5_000_000)
    assert pool.submit(lambda value: value[::-1], data).result() == data[::-1]


def test_a_queued_job_can_be_cancelled(tmp_path):
    gate = tmp_path / "gate"

    def wait():
        while not gate.exists():
            time.sleep(0.01)

    with WorkerPool(max_workers=1) as pool:
        running, queued = pool.submit(wait), pool.submit((tmp_path / "ran").touch)
        assert queued.cancel()
        gate.touch()
        running.result()
        assert pool.submit(add, 1, 1).result() == 2
    with pytest.raises(CancelledError):
        queued.result()
    assert not (tmp_path / "ran").exists()


def test_nothing_is_left_after_close(temporary, tmp_path):
    def sleep(file):
        file.write_text(str(os.getpid()))
        time.sleep(PATIENCE_S)

    file = tmp_path / "pid"
    pool = WorkerPool(max_workers=1)
    assert list(temporary.iterdir()) == []
    running, queued = pool.submit(sleep, file), pool.submit(add, 1, 1)
    wait_until(lambda: file.exists() and file.read_text())
    assert len(list(temporary.iterdir())) == 1
    pool.close()
    pool.close()
    assert list(temporary.iterdir()) == []
    assert not is_running(file.read_text())
    with pytest.raises(CompilerError, match="closed"):
        running.result()
    with pytest.raises(CancelledError):
        queued.result()
    with pytest.raises(CompilerError, match="closed"):
        pool.submit(add, 1, 1)


@pytest.mark.parametrize("bad", [{"max_workers": 0}, {"time_limit_s": 0}, {"memory_limit_bytes": 0}])
def test_limits_must_be_positive(bad):
    with pytest.raises(ValueError, match="must be positive"):
        WorkerPool(**bad)


def test_a_sweep_takes_only_what_nobody_owns(temporary):
    owned, abandoned = make_worker_folder(), make_worker_folder()
    os.close(abandoned.lock)  # what the kernel does when a process dies
    (abandoned.dump / "listing").write_text("x")
    (temporary / "somebody-elses").mkdir()
    assert sweep_worker_folders() == [abandoned.path]
    assert sorted(path.name for path in temporary.iterdir()) == sorted([owned.path.name, "somebody-elses"])
    owned.remove()


def _compiles(started: str, go_on: str) -> None:
    with at_stage("compiling"):
        folder = Path(os.environ[FOLDER_VARIABLE]) / "dump"
        for number in range(3):
            (folder / f"17{number}-fusion.{number}-02-final_bundles.txt").touch()
        (folder / "17-fusion.0-01-schedule-analysis_final_bundles.txt").touch()
        Path(started).touch()
        while not Path(go_on).exists():
            time.sleep(0.01)


def test_a_pool_says_how_far_its_jobs_are(pool, tmp_path):
    started, go_on = tmp_path / "started", tmp_path / "go_on"
    assert pool.progress() == ()
    job = pool.submit(_compiles, str(started), str(go_on))
    wait_until(started.exists)
    assert pool.progress() == ("compiling, 3 operations so far",)
    go_on.touch()
    job.result()
    assert pool.progress() == ()
