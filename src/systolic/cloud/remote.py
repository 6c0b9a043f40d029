"""What runs on the machine: installs systolic, runs one of its commands, and packs what came of it.

This file is copied there and run by whatever Python 3 the machine has, from 3.8 on: it takes nothing but the standard
library. All is kept beneath `~/systolic-run`.

The command runs detached, and `start` only follows its log. gcloud calls ssh up to ten times anew when a connection
breaks, with the same command line: the second `start` of a job finds it there and follows it, and does not begin it
again. For the same reason standard output is not passed on but kept, and brought back once, whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HOME = Path.home()
ROOT = HOME / "systolic-run"
STORE = ROOT / "trials.sqlite"  # of `systolic tune`, kept from one job to the next
LOCK = ROOT / "lock"  # held by a job while it runs: only one program can have the TPU
CURRENT = ROOT / "current.json"

# Exit codes of `start` and `follow`.
BUSY = 75
NO_JOB = 76
DIED = 77


def say(text):
    """A line for whoever follows."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def folder_of(job):
    """Where a job is kept."""
    return ROOT / "jobs" / job


def lock():
    """The lock, held: an open file; None if a job has it."""
    import fcntl  # only where this runs, which is Linux: its constants are imported anywhere

    ROOT.mkdir(exist_ok=True)
    file = LOCK.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def lock_in(seconds):
    """The lock, for which it waits a little: whoever follows a job holds it for an instant to see whether that runs."""
    end = time.monotonic() + seconds
    while True:
        held = lock()
        if held is not None or time.monotonic() > end:
            return held
        time.sleep(0.1)


def start(job, replace):
    """Begins a job unless it has begun already, and follows it."""
    folder = folder_of(job)
    if folder.exists():
        return follow(job)
    held = lock_in(1.0)
    if held is None and replace:
        held = stopped_and_locked()
    if held is None:
        current = json.loads(CURRENT.read_text())
        say("still running: systolic " + " ".join(current["command"]) + " (job " + current["job"] + ")")
        return BUSY
    upload = HOME / ("systolic-" + job + ".tar.gz")
    partial = folder.with_name(job + ".partial")
    shutil.rmtree(str(partial), ignore_errors=True)
    with tarfile.open(str(upload)) as archive:
        # An archive of the user's own, which a later Python would refuse for a link that leads outside.
        if hasattr(tarfile, "fully_trusted_filter"):
            archive.extractall(str(partial), filter="fully_trusted")
        else:
            archive.extractall(str(partial))
    shutil.copyfile(__file__, str(ROOT / "remote.py"))
    with (partial / "log.txt").open("wb") as log:
        partial.rename(folder)
        # The open file of the lock goes along, which holds it until that process has ended, however it ends.
        worker = subprocess.Popen(
            [sys.executable, str(ROOT / "remote.py"), "work", job],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(held.fileno(),),
        )
    command = json.loads((folder / "job.json").read_text())["command"]
    CURRENT.write_text(json.dumps({"job": job, "group": worker.pid, "command": command}))
    held.close()
    upload.unlink()
    return follow(job)


def stopped_and_locked():
    """Stops the job that runs, first gently; the lock, or None if it does not end."""
    group = json.loads(CURRENT.read_text())["group"]
    for sent in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, sent)
        held = lock_in(20.0)
        if held is not None:
            return held
    return None


def follow(job):
    """Shows a job's log until it has ended; 0 if its results are there."""
    folder = folder_of(job)
    if not (folder / "job.json").exists():
        say("there is no job " + job)
        return NO_JOB
    with (folder / "log.txt").open("rb") as log:
        while True:
            ended = (folder / "done").exists() or not runs(job)
            shutil.copyfileobj(log, sys.stderr.buffer)
            sys.stderr.flush()
            if ended:
                break
            time.sleep(0.2)
    if (folder / "done").exists():
        return 0
    say("the job ended without a result: was the machine started anew?")
    return DIED


def runs(job):
    """Whether a job has the lock."""
    held = lock()
    if held is None:
        return True
    held.close()
    return (folder_of(job) / "done").exists()


def latest():
    """The job that was begun last; "" if there is none."""
    return json.loads(CURRENT.read_text())["job"] if CURRENT.exists() else ""


def work(job):
    """Installs, runs the command and packs; in a session of its own."""
    folder = folder_of(job)
    spec = json.loads((folder / "job.json").read_text())
    tree = folder / spec["tree"]
    tree.mkdir(exist_ok=True)
    outcome = {"job": job, "command": spec["command"], "commit": spec["commit"], "stage": "install", "exit_code": 1}
    before = {}
    try:
        say("installing systolic")
        python = install(folder, spec)
        before = snapshot(tree)
        outcome["stage"] = "command"
        say("running systolic " + " ".join(spec["command"]))
        environment = {**os.environ, "SYSTOLIC_STORE": str(STORE)}
        inside = tree / spec["inside"]
        inside.mkdir(parents=True, exist_ok=True)
        with (folder / "stdout.txt").open("wb") as out:
            outcome["exit_code"] = subprocess.call(
                [str(python.with_name("systolic")), *spec["command"]], cwd=str(inside), stdout=out, env=environment
            )
    except (OSError, subprocess.CalledProcessError) as error:
        say("could not " + outcome["stage"] + ": " + str(error))
    except KeyboardInterrupt:
        say("stopped")
        outcome["exit_code"] = 130
    finally:
        pack(folder, tree, before, outcome)


def install(folder, spec):
    """Makes the environment, once a machine, and installs this job's systolic into it; its Python."""
    environment = ROOT / "venv"
    python = environment / "bin" / "python"
    uv = uv_program()
    if not python.exists():
        # The machines' own Python is often older than systolic takes; uv fetches one.
        subprocess.check_call([uv, "venv", "--quiet", "--python", spec["python"], str(environment)])
    subprocess.check_call([uv, "pip", "install", "--quiet", "--python", str(python), *requirements(folder, spec)])
    return python


def requirements(folder, spec):
    """Arguments of `pip install`: systolic as it came along, for which no package index is asked, and what it needs."""
    package = folder / spec["package"]
    tested = package / "constraints.txt"
    found = ["--constraint", str(tested)] if tested.exists() else []
    # uv takes sources for unchanged whose version is: each job's are new.
    return [*found, "--reinstall-package", "systolic", "systolic[tpu,report] @ " + package.as_uri(), *spec["pins"]]


def uv_program():
    """Where uv is; installs it into a folder of its own if it is not there."""
    here = ROOT / "uv" / "bin" / "uv"
    found = shutil.which("uv")
    if found is None and not here.exists():
        target = ["--target", str(ROOT / "uv")]
        subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", *target, "uv"])
    return found or str(here)


def snapshot(tree):
    """Each file's time and size, of a tree and of the store."""
    found = {}
    for path in [*tree.rglob("*"), STORE]:
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
            seen = path.stat()
            found[path] = (seen.st_mtime_ns, seen.st_size)
    return found


def pack(folder, tree, before, outcome):
    """Packs what was said, and each file that is new or not what it was; the mark that says so comes last."""
    after = snapshot(tree) if outcome["stage"] == "command" else {}
    partial = folder / "results.partial"
    (folder / "run.json").write_text(json.dumps(outcome, indent=2) + "\n")
    # A second name of a file is packed as a file, and not as a link to the first.
    with tarfile.open(str(partial), "w:gz", dereference=True) as archive:
        for name in ("run.json", "stdout.txt", "log.txt"):
            if (folder / name).exists():
                archive.add(str(folder / name), name)
        for path in sorted(path for path, seen in after.items() if before.get(path) != seen):
            archive.add(str(path), STORE.name if path == STORE else "files/" + str(path.relative_to(tree)))
    partial.rename(folder / "results.tar.gz")
    shutil.copyfile(str(folder / "results.tar.gz"), str(ROOT / "latest.tar.gz"))
    (folder / "done").touch()


def main(arguments):
    """`start JOB [--replace]`, `follow` of the latest job, or `work JOB`; returns an exit code."""
    action, rest = arguments[0], arguments[1:]
    if action == "start":
        return start(rest[0], "--replace" in rest)
    if action == "follow":
        job = latest()
        if not job:
            say("no command was ever run here")
            return NO_JOB
        return follow(job)
    work(rest[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
