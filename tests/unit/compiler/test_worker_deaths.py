"""Workers that die, are killed, or outlive their parent: each costs one job at most."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import PATIENCE_S, is_running, wait_until

from systolic.compiler import CompilerCrash, CompilerTimeout
from systolic.compiler.stage import at_stage

pytestmark = pytest.mark.usefixtures("temporary")


def add(a, b):
    return a + b


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
