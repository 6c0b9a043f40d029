"""Stands in for `gcloud`: keeps a list of its calls, and machines in a folder. Copied onto PATH by `fake_cloud`.

The folder above it holds `plan.json`, the ways in which the next calls of a verb fail, `state.json`, and `home`, the
home folder of every machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "home"
STATE = ROOT / "state.json"
# In gcloud's words, with its exit code.
FAILURES = {
    "quota": ("RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProjectPerZone' has been exceeded. Limit: 0", 1),
    "capacity": ('There is no more capacity in the zone "us-west4-a"; you can try in another zone', 1),
    "taken": ("ALREADY_EXISTS: Resource 'projects/mine/locations/us-west4-a/nodes/my-tpu' already exists", 1),
    "not_found": ("NOT_FOUND: Resource 'projects/mine/locations/us-west4-a/nodes/my-tpu' was not found", 1),
    "signed_out": ("You do not currently have an active account selected. Please run: $ gcloud auth login", 1),
    "forbidden": ("PERMISSION_DENIED: Cloud TPU API has not been used in project mine before", 1),
    "lost": ("[/usr/bin/ssh] exited with return code [255].", 255),
}


def main(arguments: list[str]) -> int:
    """Do what the words after `gcloud compute tpus tpu-vm` say."""
    with (ROOT / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    verb, *rest = arguments[3:]
    failure = next_failure(verb)
    if failure == "interrupt":
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(0.1)
        return 130
    if verb == "ssh" and failure in ("lost", "twice"):
        reach(rest)  # nobody hears of its end
    if failure == "garbled":
        sys.stdout.write("Updates are available\n")
        return 0
    if failure in FAILURES:
        words, code = FAILURES[failure]
        sys.stderr.write(f"ERROR: (gcloud.compute.tpus.tpu-vm.{verb}) {words}\n")
        return code
    return act(verb, rest)


def next_failure(verb: str) -> str:
    """Take the next way to fail of a verb's; "" if it is to work."""
    plan = json.loads((ROOT / "plan.json").read_text())
    if not plan.get(verb):
        return ""
    failure = plan[verb].pop(0)
    (ROOT / "plan.json").write_text(json.dumps(plan))
    return failure


def act(verb: str, rest: list[str]) -> int:
    """Make, describe or delete a machine, or reach it."""
    if verb == "ssh":
        return reach(rest)
    if verb == "scp":
        return copy([word for word in rest if not word.startswith("--")])
    machines, name = json.loads(STATE.read_text()), rest[0]
    if verb == "create":
        machines[name] = {"state": "READY", "networkEndpoints": [{"ipAddress": "10.0.0.2"}]}
    elif name not in machines:
        sys.stderr.write(f"ERROR: (gcloud.compute.tpus.tpu-vm.{verb}) NOT_FOUND: {name} was not found\n")
        return 1
    elif verb == "describe":
        sys.stdout.write(json.dumps(machines[name]))
    elif verb == "delete":
        del machines[name]
    STATE.write_text(json.dumps(machines))
    return 0


def reach(rest: list[str]) -> int:
    """Run a command on the machine, in its shell."""
    command = next((word.split("=", 1)[1] for word in rest if word.startswith("--command=")), "true")
    environment = {**os.environ, "HOME": str(HOME), "PATH": f"{ROOT / 'remote_bin'}:/usr/bin:/bin"}
    return subprocess.call(["sh", "-c", command], cwd=HOME, env=environment)


def copy(words: list[str]) -> int:
    """Copy a file to the machine's home folder, or from it."""
    source, target = (HOME / word.split(":", 1)[1] if ":" in word else Path(word) for word in words)
    if not source.exists():
        sys.stderr.write(f"scp: {source}: No such file or directory\n")
        return 1
    shutil.copyfile(source, target / source.name if target.is_dir() else target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
