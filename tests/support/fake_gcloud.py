"""Stands in for `gcloud`: keeps a list of its calls, and machines in a folder. Copied onto PATH by `fake_cloud`.

`plan.json` names, for a verb such as `create` or `ssh`, the ways in which its next calls fail; those after them work.
A machine is a folder: `ssh --command` runs the command in it, as the user's login shell there would.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "home"
STATE = ROOT / "state.json"
PATH = "projects/mine/locations/us-west4-a/"
# As gcloud words them: first what it says, then its exit code.
FAILURES = {
    "quota": (
        "RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProjectPerZone' has been exceeded. Limit: 0",
        1,
    ),
    "capacity": ('There is no more capacity in the zone "us-west4-a"; you can try in another zone', 1),
    "taken": ("ALREADY_EXISTS: Resource 'projects/mine/locations/us-west4-a/nodes/my-tpu' already exists", 1),
    "not_found": ("NOT_FOUND: Resource 'projects/mine/locations/us-west4-a/nodes/my-tpu' was not found", 1),
    "signed_out": ("You do not currently have an active account selected. Please run: $ gcloud auth login", 1),
    "forbidden": ("PERMISSION_DENIED: Cloud TPU API has not been used in project mine before", 1),
    "lost": ("[/usr/bin/ssh] exited with return code [255].", 255),
}


def main(arguments: list[str]) -> int:
    """Does what the words behind `gcloud compute tpus` say."""
    with (ROOT / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    kind, verb, *rest = arguments[2:]
    queued = kind == "queued-resources"
    failure = next_failure(verb)
    if failure == "interrupt":
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(0.2)
        return 130
    if failure == "lost" and verb == "ssh":
        reach(rest)  # the command ran, but nobody is there to hear its end
    if failure == "twice":
        reach(rest)
    elif failure == "garbled":
        sys.stdout.write("Updates are available\n")
        return 0
    elif failure in FAILURES:
        words, code = FAILURES[failure]
        sys.stderr.write(f"ERROR: (gcloud.compute.tpus.{kind}.{verb}) {words}\n")
        return code
    return act(verb, rest, queued)


def next_failure(verb: str) -> str:
    """The next way to fail of a verb's, which is used up; "" if it is to work."""
    plan = json.loads((ROOT / "plan.json").read_text())
    if not plan.get(verb):
        return ""
    failure = plan[verb].pop(0)
    (ROOT / "plan.json").write_text(json.dumps(plan))
    return failure


def act(verb: str, rest: list[str], queued: bool) -> int:
    """Does it."""
    state = json.loads(STATE.read_text())
    kept = state["queue" if queued else "nodes"]
    name = rest[0] if rest and not rest[0].startswith("-") else ""
    flags = dict(word.split("=", 1) for word in rest if word.startswith("--") and "=" in word)
    if verb == "create":
        sys.stderr.write("Create request issued\n")
        node = {
            "name": f"{PATH}nodes/{name}",
            "acceleratorType": flags["--accelerator-type"],
            "runtimeVersion": flags["--runtime-version" if queued else "--version"],
            "state": "READY",
            "createTime": "2026-05-01T10:11:12Z",
            "networkEndpoints": [{"ipAddress": "10.0.0.2"}],
            "schedulingConfig": {"spot": "--spot" in rest},
        }
        request = {
            "name": f"{PATH}queuedResources/{name}",
            "state": {"state": "WAITING_FOR_RESOURCES"},
            "tpu": {"nodeSpec": [{"nodeId": flags.get("--node-id", ""), "node": node}]},
        }
        kept[name] = request if queued else node
    elif verb == "list":
        sys.stdout.write(json.dumps(list(kept.values())))
    elif verb == "ssh":
        return reach(rest)
    elif verb == "scp":
        return copy([word for word in rest if not word.startswith("--")])
    elif name not in kept:
        sys.stderr.write(f"ERROR: (gcloud.compute.tpus.tpu-vm.{verb}) NOT_FOUND: {name} was not found\n")
        return 1
    elif verb == "describe":
        sys.stdout.write(json.dumps(kept[name]))
    elif verb == "delete":
        del kept[name]
    STATE.write_text(json.dumps(state))
    return 0


def reach(rest: list[str]) -> int:
    """Runs a command on the machine."""
    command = next((word.split("=", 1)[1] for word in rest if word.startswith("--command=")), "true")
    environment = {**os.environ, "HOME": str(HOME), "PATH": f"{ROOT / 'remote_bin'}:/usr/bin:/bin"}
    return subprocess.call(shlex.split(command), cwd=HOME, env=environment)


def copy(words: list[str]) -> int:
    """To the machine's home folder, or from it."""
    for word in words[:-1]:
        source = HOME / word.split(":", 1)[1] if ":" in word else Path(word)
        target = HOME / source.name if words[-1].endswith(":") else Path(words[-1])
        shutil.copyfile(source, target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
