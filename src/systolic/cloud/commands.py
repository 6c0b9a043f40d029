"""The command lines of `gcloud`, as lists of arguments. Nothing is run here, and no shell will read them.

Options: https://cloud.google.com/sdk/gcloud/reference/compute/tpus. A value stands in one argument with its flag, so
that none can be taken for a flag of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from systolic.cloud.machine import Address
from systolic.cloud.offers import Order

Arguments = tuple[str, ...]

_MACHINES = ("gcloud", "compute", "tpus", "tpu-vm")
_QUEUE = ("gcloud", "compute", "tpus", "queued-resources")
# A connection that breaks without a word would be waited on for ever: two minutes of silence end it.
_ALIVE = ("--ssh-flag=-oServerAliveInterval=30", "--ssh-flag=-oServerAliveCountMax=4")


def create(order: Order) -> Arguments:
    """Makes a machine, and waits until it is there."""
    return (
        *_MACHINES,
        "create",
        order.address.name,
        *order.address.flags,
        f"--accelerator-type={order.accelerator_type}",
        f"--version={order.runtime_version}",
        *(("--spot",) if order.spot else ()),
    )


def queue(order: Order) -> Arguments:
    """Asks for a machine as soon as there is one: request and machine get the same name."""
    return (
        *_QUEUE,
        "create",
        order.address.name,
        *order.address.flags,
        f"--node-id={order.address.name}",
        f"--accelerator-type={order.accelerator_type}",
        f"--runtime-version={order.runtime_version}",
        *(("--spot",) if order.spot else ()),
    )


def describe(address: Address) -> Arguments:
    """All that is known of a machine, as JSON."""
    return (*_MACHINES, "describe", address.name, *address.flags, "--format=json")


def describe_queued(address: Address) -> Arguments:
    """All that is known of a request for a machine, as JSON."""
    return (*_QUEUE, "describe", address.name, *address.flags, "--format=json")


def list_machines(zone: str, project: str) -> Arguments:
    """The machines of a zone, as JSON."""
    return (*_MACHINES, "list", *Address(name="", zone=zone, project=project).flags, "--format=json")


def list_queued(zone: str, project: str) -> Arguments:
    """The requests of a zone, as JSON."""
    return (*_QUEUE, "list", *Address(name="", zone=zone, project=project).flags, "--format=json")


def delete(address: Address) -> Arguments:
    """Deletes a machine without a question: whoever calls this has asked."""
    return (*_MACHINES, "delete", address.name, *address.flags, "--quiet")


def delete_queued(address: Address) -> Arguments:
    """Deletes a request with its machine, which cannot be deleted without it, and without a question."""
    return (*_QUEUE, "delete", address.name, *address.flags, "--force", "--quiet")


def ssh(address: Address, extra: Sequence[str] = ()) -> Arguments:
    """A shell on a machine; `extra` goes to ssh itself."""
    return (*_MACHINES, "ssh", address.name, *address.flags, *(("--", *extra) if extra else ()))


def ssh_run(address: Address, command: Sequence[str]) -> Arguments:
    """A command on a machine. The far side's shell reads one string, so its words are quoted for that shell."""
    return (*_MACHINES, "ssh", address.name, *address.flags, *_ALIVE, f"--command={shlex.join(command)}")


def copy_there(address: Address, files: Sequence[str]) -> Arguments:
    """Copies files of the current folder to a machine's home folder."""
    return (*_MACHINES, "scp", *files, f"{address.name}:", *address.flags)


def copy_back(address: Address, file: str, to: str) -> Arguments:
    """Copies a file, named from a machine's home folder, into the current folder."""
    return (*_MACHINES, "scp", f"{address.name}:{file}", to, *address.flags)


def quoted(arguments: Sequence[str]) -> str:
    """A command line as one can paste it into a shell."""
    return shlex.join(arguments)
