"""Processes killed at any moment: acknowledged writes are still stored, files open, and the pool continues."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fault_records
from fault_cases import CaseError, Section, Setting

from systolic.compiler import CompilerCrash, FunctionExit, ProgramCache, WorkerPool
from systolic.store import TrialStore

_KILLS = 4
_WRITE = """
import sys
from pathlib import Path
sys.path[:0] = [{folder!r}]
import fault_records
fault_records.write_{what}(Path(sys.argv[1]), int(sys.argv[2]))
"""


def _killed_writers(what: str, file: Path, choose: random.Random) -> set[int]:
    """Return the numbers that writers acknowledged before they were killed."""
    script = _WRITE.format(folder=str(Path(__file__).parent), what=what)
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(file), str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(_KILLS)
    ]
    acknowledged: set[int] = set()
    for writer in writers:  # all are at work
        assert writer.stdout is not None
        acknowledged.add(int(writer.stdout.readline()))
    for writer in choose.sample(writers, len(writers)):
        time.sleep(choose.random() / 20)
        writer.send_signal(signal.SIGKILL)
    for writer in writers:
        output, _ = writer.communicate()
        acknowledged.update(int(line) for line in output.split("\n")[:-1])
    return acknowledged


def _store(choose: random.Random, folder: Path, _setting: Setting) -> None:
    file = folder / "trials.sqlite"
    acknowledged = _killed_writers("trials", file, choose)
    stored = {fault_records.number_of(trial) for trial in TrialStore(file).trials(fault_records.ELSEWHERE)}
    if not acknowledged <= stored:
        raise CaseError(f"{len(acknowledged - stored)} of {len(acknowledged)} acknowledged trials are lost")


def _cache(choose: random.Random, folder: Path, _setting: Setting) -> None:
    acknowledged = _killed_writers("programs", folder / "programs", choose)
    cache = ProgramCache(folder=folder / "programs")
    for number in sorted(acknowledged):
        program = cache.get(str(number))
        if program is None:
            raise CaseError(f"program {number} of {len(acknowledged)} acknowledged ones is lost")
        fault_records.check_program(program, number)


def _worker(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    ending = choose.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, 0, 3])
    with WorkerPool(max_workers=1) as pool:
        try:
            pool.submit(
                fault_records.die, int(ending), choose.random() / 50, isinstance(ending, signal.Signals)
            ).result()
        except (CompilerCrash, FunctionExit) as error:
            expected = ending.name if isinstance(ending, signal.Signals) else f"exit({int(ending)})"
            if expected not in str(error):
                raise CaseError(f"died of {expected}, but the error says: {error}") from error
        else:
            raise CaseError("a dead worker gave a result")
        if pool.submit(os.getpid).result() == os.getpid():
            raise CaseError("the next job did not run in a worker")


SECTIONS = (
    Section(name="killed-writers", tries="four writers of trials, killed", share=1, attempt=_store),
    Section(name="killed-caches", tries="four writers of programs, killed", share=1, attempt=_cache),
    Section(name="killed-workers", tries="a worker that dies in the middle of a job", share=1, attempt=_worker),
)
