"""Command lines, errors, records and archives of TPU machines: all that needs no gcloud."""

from __future__ import annotations

import ast
import pickle
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_cloud import fake_cloud
from hypothesis import given
from hypothesis import strategies as st

import systolic
from systolic.chips import CHIPS
from systolic.cloud import (
    Address,
    ConnectionLostError,
    GcloudError,
    Machine,
    MachineNotFoundError,
    MachineRequestError,
    NameTakenError,
    QueuedRequest,
    QuotaError,
    SignInError,
    commands,
    gcloud,
    jobs,
    order,
)
from systolic.cloud.errors import classified
from systolic.cloud.offers import address, chip_of

WHERE = Address(name="my-tpu", zone="us-west4-a", project="mine")
SHELLS = ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput")
SOURCE = Path(systolic.__file__).parent


@pytest.mark.parametrize(
    ("asked", "accelerator_type", "runtime_version"),
    [
        ({}, "v5litepod-1", "v2-alpha-tpuv5-lite"),
        ({"chip_name": "v4"}, "v4-8", "tpu-ubuntu2204-base"),
        ({"chip_name": "v5p"}, "v5p-8", "v2-alpha-tpuv5"),
        ({"chip_name": "trillium"}, "v6e-1", "v2-alpha-tpuv6e"),
        ({"accelerator_type": "v6e-4"}, "v6e-4", "v2-alpha-tpuv6e"),
        ({"accelerator_type": "v5litepod-8", "chip_name": "v5e"}, "v5litepod-8", "v2-alpha-tpuv5-lite"),
        ({"runtime_version": "mine"}, "v5litepod-1", "mine"),
        ({"accelerator_type": "v99-1", "runtime_version": "new"}, "v99-1", "new"),
        ({"chip_name": "v7x", "accelerator_type": "tpu7x-8", "runtime_version": "new"}, "tpu7x-8", "new"),
    ],
)
def test_what_is_asked_for_follows_from_what_is_given(
    asked: dict[str, Any], accelerator_type: str, runtime_version: str
) -> None:
    made = order(WHERE, **asked)
    assert (made.accelerator_type, made.runtime_version) == (accelerator_type, runtime_version)


def test_every_chip_is_offered_or_says_why_not() -> None:
    for name in ("v4", "v5e", "v5p", "v6e"):
        assert chip_of(order(WHERE, chip_name=name).accelerator_type) == name
    for name in set(CHIPS) - {"v4", "v5e", "v5p", "v6e"}:
        with pytest.raises(MachineRequestError, match="https://"):
            order(WHERE, chip_name=name)


@given(st.text(max_size=70))
def test_no_name_can_be_taken_for_a_flag(name: str) -> None:
    try:
        made = address(name)
    except MachineRequestError:
        return
    assert made.name[0].isalpha()
    assert len(made.name) <= 63
    assert made.name.replace("-", "a").isalnum()
    assert made.name.isascii()


def all_lines(text: str) -> list[commands.Arguments]:
    """Every command line, with a text in all places that a user fills."""
    where = Address(name="my-tpu", zone=text, project=text)
    made = order(where, accelerator_type=f"v6e-{text}", runtime_version=text, spot=True)
    return [
        commands.create(made),
        commands.queue(made),
        commands.describe(where),
        commands.describe_queued(where),
        commands.list_machines(text, text),
        commands.list_queued(text, text),
        commands.delete(where),
        commands.delete_queued(where),
        commands.ssh(where, [text]),
        commands.ssh_run(where, [text, "x"]),
        commands.copy_back(where, "a", "b"),
        jobs.upload_command(where, "1"),
        jobs.start_command(where, "1", replace=True),
        jobs.follow_command(where),
        jobs.fetch_command(where, ""),
    ]


@given(st.text(min_size=1))
def test_no_text_of_a_users_becomes_a_flag_or_reaches_a_shell(text: str) -> None:
    for line, plain in zip(all_lines(text), all_lines("word"), strict=True):
        assert len(line) == len(plain)
        flags = [word.split("=", 1)[0] for word in line if word.startswith("--")]
        if text not in line:  # behind the -- of ssh, where everything is the user's
            assert flags == [word.split("=", 1)[0] for word in plain if word.startswith("--")]
        assert shlex.split(commands.quoted(line)) == list(line)


@given(st.lists(st.text(), min_size=1))
def test_the_far_sides_shell_reads_the_words_that_were_meant(words: list[str]) -> None:
    (command,) = [word for word in commands.ssh_run(WHERE, words) if word.startswith("--command=")]
    assert shlex.split(command.removeprefix("--command=")) == words


def test_nothing_is_run_through_a_shell() -> None:
    shells = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                shells.append(path)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "os.system",
                "os.popen",
                "subprocess.getoutput",
            ):
                shells.append(path)
    assert shells == []


def gcloud_says(verb: str, words: str) -> str:
    return f"Request issued\nERROR: (gcloud.compute.tpus.tpu-vm.{verb}) {words}\n"


@pytest.mark.parametrize(
    ("verb", "returncode", "words", "kind"),
    [
        ("create", 1, "RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPerProjectPerZone' has been exceeded", QuotaError),
        ("create", 1, 'Error code 8, message: There is no more capacity in the zone "us-central1-c"', QuotaError),
        ("create", 1, "Insufficient reserved capacity. Contact customer support", QuotaError),
        ("create", 1, "ALREADY_EXISTS: Resource 'projects/p/locations/z/nodes/n' already exists", NameTakenError),
        ("create", 1, "NOT_FOUND: accelerator type v6e-3 not found in zone", GcloudError),
        ("create", 1, "The [zone] resource is not properly specified.", GcloudError),
        ("describe", 1, "NOT_FOUND: Resource 'projects/p/locations/z/nodes/n' was not found", MachineNotFoundError),
        ("delete", 1, "NOT_FOUND: was not found", MachineNotFoundError),
        ("list", 1, "PERMISSION_DENIED: not allowed", GcloudError),
        ("list", 1, "Failed to establish a new connection: Name or service not known", ConnectionLostError),
        ("ssh", 1, "[/usr/bin/ssh] exited with return code [255].", ConnectionLostError),
        ("scp", 1, "[/usr/bin/scp] exited with return code [255].", ConnectionLostError),
        ("ssh", 1, "Reauthentication failed. Please run: $ gcloud auth login", SignInError),
        ("ssh", 1, "Could not fetch resource: NOT_FOUND", MachineNotFoundError),
    ],
)
def test_failures_have_names(verb: str, returncode: int, words: str, kind: type[GcloudError]) -> None:
    error = classified(verb, "my-tpu", returncode, gcloud_says(verb, words))
    assert type(error) is kind
    assert error.words == words
    assert words in str(error)
    assert error.returncode == returncode
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied), copied.words) == (kind, str(error), words)


def test_a_remote_programs_words_are_not_gclouds() -> None:
    said = "quota: not found, already exists\nConnection reset by peer\ngcloud auth login\n"
    error = classified("ssh", "my-tpu", 3, said)
    assert type(error) is GcloudError
    assert error.returncode == 3
    assert type(classified("ssh", "my-tpu", 255, said)) is ConnectionLostError


NODE: dict[str, Any] = {
    "name": "projects/mine/locations/us-west4-a/nodes/my-tpu",
    "acceleratorType": "projects/mine/locations/us-west4-a/acceleratorTypes/v5litepod-16",
    "runtimeVersion": "v2-alpha-tpuv5-lite",
    "state": "READY",
    "schedulingConfig": {"preemptible": True},
    "networkEndpoints": [{}, {}, {}, {}],
    "queuedResource": "projects/mine/locations/us-west4-a/queuedResources/asked",
    "createTime": "2026-05-01T10:11:12Z",
}


def test_records_of_machines_and_requests() -> None:
    machine = Machine.of(NODE)
    assert (machine.name, machine.zone, machine.accelerator_type) == ("my-tpu", "us-west4-a", "v5litepod-16")
    assert (machine.spot, machine.hosts, machine.queued_request) == (True, 4, "asked")
    bare = Machine.of({"name": "my-tpu"})
    assert (bare.zone, bare.state, bare.spot, bare.hosts, bare.queued_request) == ("", "UNKNOWN", False, 1, "")
    request = QueuedRequest.of(
        {
            "name": "projects/mine/locations/us-west4-a/queuedResources/asked",
            "state": {"state": "ACTIVE"},
            "spot": {},
            "tpu": {"nodeSpec": [{"nodeId": "my-tpu", "node": {"acceleratorType": "v6e-1"}}]},
        }
    )
    assert (request.name, request.state, request.spot, request.machines) == ("asked", "ACTIVE", True, ("my-tpu",))
    assert QueuedRequest.of({"name": "asked"}).state == "UNKNOWN"


def test_gcloud_that_answers_with_words_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cloud(tmp_path / "cloud", monkeypatch).fail(describe=["garbled"])
    with pytest.raises(GcloudError, match="Updates are available"):
        gcloud.machine(WHERE)


def test_the_program_for_the_machine_runs_on_an_old_python_alone() -> None:
    text = (SOURCE / "cloud" / "remote.py").read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)
