"""Limits of a worker's CPU time and memory, and what is said of a worker that reached one or ended by itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import PATIENCE_S, wait_until

from systolic.compiler import (
    CompilerCrash,
    CompilerOutOfMemory,
    CompilerTimeout,
    FunctionExit,
    WorkerPool,
    at_stage,
    source_line,
)
from systolic.compiler.blame import line_in_stacks
from systolic.compiler.endings import last_words
from systolic.compiler.limits import LimitReachedError, Limits, Watch, group_use
from systolic.compiler.memory import bearable_bytes

MIB = 2**20
GIB = 2**30


def spin():
    while True:
        pass


def hold(size_bytes, seconds):
    kept = bytearray(b"x" * size_bytes)
    time.sleep(seconds)
    return len(kept)


def hold_in_a_child(size_bytes):
    program = f"import time; kept = bytearray(b'x' * {size_bytes}); time.sleep({PATIENCE_S})"
    subprocess.run([sys.executable, "-c", program], check=True)


def sleep_and_tell(file, seconds):
    file.write_text(str(os.getpid()))
    time.sleep(seconds)
    return "slept"


def test_a_job_that_computes_for_ever_is_stopped_at_its_line():
    with WorkerPool(max_workers=1) as pool, pytest.raises(CompilerTimeout) as caught:
        pool.submit(spin, time_limit_s=0.5, label="spinning").result()
    found = caught.value
    assert (found.counted, found.limit_s) == ("cpu", 0.5)
    assert (found.used_cpu_s or 0) > 0.5
    assert found.where.startswith(f"{__file__}:")
    assert found.where.endswith("in spin")
    assert "--time-limit" in str(found)
    assert "time_limit_s" in str(found)


@pytest.mark.exhaustive
def test_a_stopped_worker_uses_no_time(tmp_path):
    # As on a machine that is too busy to run it. Until it goes on, three time limits pass by the clock.
    file = tmp_path / "pid"
    with WorkerPool(max_workers=1, time_limit_s=2) as pool:
        future = pool.submit(sleep_and_tell, file, 0.1)
        wait_until(lambda: file.exists() and file.read_text())
        os.kill(int(file.read_text()), signal.SIGSTOP)
        time.sleep(6)
        assert not future.done()
        os.kill(int(file.read_text()), signal.SIGCONT)
        assert future.result() == "slept"


@pytest.mark.exhaustive
def test_a_job_that_waits_for_ever_is_stopped_by_the_clock():
    with WorkerPool(max_workers=1) as pool, pytest.raises(CompilerTimeout) as caught:
        pool.submit(time.sleep, PATIENCE_S, time_limit_s=0.5, label="waiting").result()
    found = caught.value
    assert (found.counted, found.limit_s) == ("wall", 5)
    assert found.used_cpu_s is not None
    assert found.used_cpu_s <= 0.5
    assert "waited for the rest" in str(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("task", "arguments"), [(hold, (400 * MIB, PATIENCE_S)), (hold_in_a_child, (400 * MIB,))], ids=["itself", "child"]
)
def test_a_job_past_its_memory_is_stopped_and_the_others_go_on(task, arguments):
    with WorkerPool(max_workers=2, memory_limit_bytes=300 * MIB) as pool:
        greedy, modest = pool.submit(task, *arguments, label="greedy"), pool.submit(hold, 10 * MIB, 3)
        with pytest.raises(
            CompilerOutOfMemory, match=r"greedy was stopped with .* over its limit of 0\.29 GiB"
        ) as caught:
            greedy.result()
        assert modest.result() == 10 * MIB
        assert pool.submit(hold, 10 * MIB, 0).result() == 10 * MIB
    assert caught.value.limit_bytes == 300 * MIB
    assert caught.value.used_bytes > 300 * MIB
    assert "--memory-limit (in Python: memory_limit_bytes)" in str(caught.value)


def test_the_limits_are_compared_with_what_is_used_from_the_beginning():
    group = os.getpgid(0)
    used = group_use(group)
    assert used is not None
    assert used.resident_bytes > 10 * MIB
    Watch(group, Limits(cpu_s=60, wall_s=60, memory_bytes=None)).check()
    with pytest.raises(LimitReachedError) as caught:
        Watch(group, Limits(cpu_s=60, wall_s=60, memory_bytes=1)).check()
    assert caught.value.kind == "memory"
    with pytest.raises(LimitReachedError) as caught:
        Watch(group, Limits(cpu_s=60, wall_s=0, memory_bytes=None)).check()
    assert caught.value.kind == "wall"


def test_a_system_that_does_not_tell_counts_the_clock(monkeypatch, tmp_path):
    monkeypatch.setattr("systolic.compiler.limits._PROCESSES", tmp_path / "none")
    watch = Watch(os.getpgid(0), Limits(cpu_s=1e-9, wall_s=60, memory_bytes=1))
    with pytest.raises(LimitReachedError) as caught:
        watch.check()
    assert (caught.value.kind, caught.value.limit, caught.value.used_cpu_s) == ("wall", 1e-9, None)


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {20 * 1024 * 1024} kB\n"}
GROUP_2 = {
    **MACHINE,
    "proc/self/cgroup": "0::/a/b\n",
    "sys/fs/cgroup/a/memory.max": str(12 * GIB),
    "sys/fs/cgroup/a/memory.current": str(3 * GIB),
    "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 0\n",
    "sys/fs/cgroup/a/b/memory.max": "max",
    "sys/fs/cgroup/a/b/memory.current": "5",
}
GROUP_1 = {
    **MACHINE,
    "proc/self/cgroup": "9:cpu,memory:/host/path\n1:name=systemd:/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": str(10 * GIB),
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
}


@pytest.mark.parametrize(
    ("files", "free_bytes"),
    [(MACHINE, 20 * GIB), (GROUP_2, 10 * GIB), (GROUP_1, 10 * GIB)],
    ids=["machine", "cgroup v2", "cgroup v1"],
)
def test_workers_share_what_is_free(tmp_path, files, free_bytes):
    root = system(tmp_path, files)
    assert bearable_bytes(1, root) == int(0.9 * free_bytes)
    assert bearable_bytes(2, root) == int(0.9 * free_bytes) // 2
    assert bearable_bytes(100, root) == 2 * GIB


def test_a_system_that_does_not_tell_what_is_free_sets_no_limit(tmp_path):
    assert bearable_bytes(1, tmp_path) is None


ENDS = {
    "raise SystemExit(7)": "SystemExit(7)",
    "import sys; sys.exit('no')": "SystemExit('no')",
    "raise KeyboardInterrupt": "KeyboardInterrupt()",
    "import os; os._exit(7)": "os._exit(7)",
}


@pytest.mark.sampled
@pytest.mark.parametrize("statement", ENDS)
@pytest.mark.parametrize("inside", [False, True], ids=["import", "call"])
def test_the_end_of_the_program_is_the_functions_doing(tmp_path, statement, inside):
    file = tmp_path / "leaving.py"
    file.write_text(f"def leave():\n    pass\n    {statement}\n" + ("" if inside else "leave()\n"))

    def run(path):
        import runpy

        names = runpy.run_path(str(path))
        names["leave"]()

    with WorkerPool(max_workers=1) as pool:
        with pytest.raises(FunctionExit) as caught:
            pool.submit(run, file).result()
        assert pool.submit(hold, 1, 0).result() == 1
    assert caught.value.how == ENDS[statement]
    assert caught.value.where == f"{file}:3 in leave"
    assert str(caught.value).startswith(f"{ENDS[statement]} at {file}:3 in leave would end the program")


def test_a_forked_child_may_exit_as_it_likes():
    def fork():
        child = os.fork()
        if child == 0:
            os._exit(7)
        os.waitpid(child, 0)
        os.abort()

    with WorkerPool(max_workers=1) as pool, pytest.raises(CompilerCrash, match="SIGABRT"):
        pool.submit(fork).result()


def test_an_exception_from_a_worker_keeps_its_line():
    def fail():
        raise KeyError("missing")

    with WorkerPool(max_workers=1) as pool, pytest.raises(KeyError) as caught:
        pool.submit(fail).result()
    where = source_line(caught.value)
    assert where is not None
    assert where.startswith(f"{__file__}:")
    assert where.endswith("in fail")


def test_what_a_dead_worker_was_doing_is_known():
    def die():
        with at_stage("compiling"):
            os.write(2, b"F1121 23:34:10.713451   12727 layout.h:341] out of luck\n" + b"    @  0x7f  frame()\n" * 3000)
            os.abort()

    with WorkerPool(max_workers=1) as pool, pytest.raises(CompilerCrash) as caught:
        pool.submit(die, label="f").result()
    assert caught.value.stage == "compiling"
    assert str(caught.value) == (
        "the worker process ended by SIGABRT during f, while the TPU compiler was at work: layout.h:341] out of luck"
    )
    assert not caught.value.by_function


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "x\nF1121 23:34:10.71 12 a.h:3] Check failed: a == b (1 vs. 2) \n    @ 0x1 f()\n",
            "Check failed: a == b (1 vs. 2)",
        ),
        ("F1121 23:34:10.71 12 a.h:3] no luck\n*** stack ***\nE1121 RAW: coroner\n", "a.h:3] no luck"),
        ("noise\nLLVM ERROR: out of registers\nPC: @ 0x\n", "LLVM ERROR: out of registers"),
        ("ERROR: Unknown command line flag 'a'\n", "ERROR: Unknown command line flag 'a'"),
        ("terminate called after throwing\n  what():  bad\n", "terminate called after throwing"),
        ("something was printed\n*** SIGABRT received ***\nhttps://symbolize.x\n\n", "something was printed"),
        ("*** SIGABRT received ***\n", ""),
        ("", ""),
    ],
)
def test_the_last_words_are_found_among_stack_traces(text, words):
    assert last_words(text) == words


def test_the_users_line_is_found_in_the_stacks_of_all_threads():
    stacks = (
        "Thread 0x1 (most recent call first):\n"
        f'  File "{os.__file__}", line 3 in wait\n'
        f'  File "{__file__}", line 9 in other\n\n'
        "Current thread 0x2 (most recent call first):\n"
        f'  File "{os.__file__}", line 3 in wait\n'
        f'  File "{__file__}", line 5 in inner\n'
        f'  File "{__file__}", line 7 in outer\n'
    )
    assert line_in_stacks(stacks) == f"{__file__}:5 in inner"
    assert line_in_stacks(stacks.partition("Current")[0]) == f"{__file__}:9 in other"
    assert line_in_stacks("") == ""


_HELD: list[bytearray] = []


def _holding(mebibytes: int) -> int:
    """The worker's process id, which holds on to memory."""
    _HELD.append(bytearray(b"1" * 2**20) * mebibytes)
    return os.getpid()


def test_a_worker_that_holds_too_much_memory_is_replaced() -> None:
    with WorkerPool(max_workers=1, memory_limit_bytes=600 * 2**20) as pool:
        first = pool.submit(_holding, 1).result()
        assert pool.submit(_holding, 350).result() == first
        assert pool.submit(_holding, 350).result() != first  # both would be too much
