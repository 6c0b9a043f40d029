import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from systolic.compiler import CompilerCrash, CompilerError, CompilerTimeout, TaskError, WorkerPool
from systolic.compiler.folders import make_worker_folder, sweep_worker_folders
from systolic.compiler.stage import FOLDER_VARIABLE, at_stage

PATIENCE_S = 30


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def pool():
    with WorkerPool(max_workers=2, time_limit_s=PATIENCE_S) as pool:
        yield pool


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid):
    # Its main thread is a zombie before the other threads have ended.
    try:
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        return threads > 1 or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


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


def test_an_abort_costs_one_job(pool):
    def abort():
        os.write(2, b"Check failed: a == b\n")
        os.abort()

    with pytest.raises(CompilerCrash, match="SIGABRT during the aborting job: Check failed: a == b") as caught:
        pool.submit(abort, label="the aborting job").result()
    assert caught.value.signal_name == "SIGABRT"
    assert caught.value.exit_code is None
    assert pool.submit(add, 1, 1).result() == 2


@pytest.mark.parametrize(
    ("stage", "deaths", "survives"), [("interpreting", 1, True), ("interpreting", 2, False), ("compiling", 1, False)]
)
def test_interpret_mode_is_tried_again_once(pool, tmp_path, stage, deaths, survives):
    def die(file):
        with at_stage(stage), file.open("a") as lines:
            lines.write("tried\n")
            lines.flush()
            if len(file.read_text().splitlines()) <= deaths:
                os.kill(os.getpid(), signal.SIGSEGV)
        return "an answer"

    file = tmp_path / "tries"
    future = pool.submit(die, file)
    if survives:
        assert future.result() == "an answer"
    else:
        with pytest.raises(CompilerCrash, match="SIGSEGV"):
            future.result()
    assert len(file.read_text().splitlines()) == (2 if stage == "interpreting" else 1)


def test_an_exit_is_a_crash_with_its_code(pool):
    with pytest.raises(CompilerCrash) as caught:
        pool.submit(os._exit, 7).result()
    assert (caught.value.exit_code, caught.value.signal_name) == (7, None)


def test_a_kill_in_the_middle(pool, tmp_path):
    def sleep(file):
        file.write_text(str(os.getpid()))
        time.sleep(PATIENCE_S)

    file = tmp_path / "pid"
    future = pool.submit(sleep, file)
    wait_until(lambda: file.exists() and file.read_text())
    os.kill(int(file.read_text()), signal.SIGKILL)
    with pytest.raises(CompilerCrash, match="SIGKILL"):
        future.result()
    assert pool.submit(add, 1, 1).result() == 2


def test_a_worker_that_died_idle_is_replaced(pool):
    pid = pool.submit(os.getpid).result()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    assert pool.submit(os.getpid).result() != pid


@pytest.mark.exhaustive
def test_the_time_limit_kills_the_worker_and_its_children(pool, tmp_path):
    def start_child_and_spin(file):
        child = subprocess.Popen(["sleep", "60"])
        file.write_text(f"{os.getpid()} {child.pid}")
        while True:
            pass

    file = tmp_path / "pids"
    with pytest.raises(CompilerTimeout, match="slow job was stopped after its time limit of 1 s of CPU") as caught:
        pool.submit(start_child_and_spin, file, time_limit_s=1, label="slow job").result()
    assert caught.value.limit_s == 1
    for pid in file.read_text().split():
        wait_until(lambda pid=pid: not is_running(pid))
    assert pool.submit(add, 1, 1).result() == 2


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


SLEEPING_PARENT = """
import os, pathlib, signal, sys, tempfile, time
# A shell starts what it runs in the background deaf to Ctrl-C, and children stay so.
signal.signal(signal.SIGINT, signal.default_int_handler)
tempfile.tempdir = sys.argv[1]
from systolic.compiler import WorkerPool
def sleep(file):
    file.write_text(str(os.getpid()))
    time.sleep(60)
with WorkerPool() as pool:
    pool.submit(sleep, pathlib.Path(sys.argv[2])).result()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_die_with_their_parent(temporary, tmp_path, how):
    file = tmp_path / "pid"
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPING_PARENT, temporary, file], stderr=subprocess.DEVNULL
    ) as parent:
        wait_until(lambda: file.exists() and file.read_text())
        parent.send_signal(how)
        parent.wait(PATIENCE_S)
    wait_until(lambda: not is_running(file.read_text()))
    assert list(temporary.iterdir()) == []


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
