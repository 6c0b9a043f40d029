"""No machine is left behind without a word: what is said of it, and how it is deleted."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import click

from systolic.cloud import Address, Machine, MachineError, MachineNotFoundError, QueuedRequest, commands, gcloud

# In these it costs nothing: https://cloud.google.com/tpu/docs/managing-tpus-tpu-vm
FREE_STATES = ("STOPPED", "PREEMPTED", "TERMINATED", "DELETING")
# The request waits, or has ended.
_WITHOUT_MACHINE = ("ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED")


@dataclass(slots=True)
class Stay:
    """A machine while a command uses it.

    Attributes:
      there: whether it is, or may be.
      running: whether a command was begun on it whose results are not here.
      deletion: the command line that deletes it.
    """

    where: Address
    there: bool = True
    running: bool = False
    deletion: commands.Arguments = field(init=False)

    def __post_init__(self) -> None:
        self.deletion = commands.delete(self.where)

    def found(self, machine: Machine) -> None:
        """It is there; one that was queued is deleted with its request."""
        self.there = True
        self.deletion = deletion_of(machine, self.where)


def deletion_of(machine: Machine, where: Address) -> commands.Arguments:
    """The command line that deletes a machine."""
    if machine.queued_request:
        return commands.delete_queued(Address(name=machine.queued_request, zone=where.zone, project=where.project))
    return commands.delete(where)


def hint(verb: str, where: Address, *more: str) -> str:
    """A command of systolic's to paste into a shell."""
    return shlex.join(["systolic", "tpu", verb, where.name, *where.flags, *more])


def list_hint(where: Address) -> str:
    """The command that shows what there is."""
    return shlex.join(["systolic", "tpu", "list", *where.flags])


def show(chunk: bytes) -> None:
    """What gcloud says, on standard error."""
    sys.stderr.flush()
    sys.stderr.buffer.write(chunk)
    sys.stderr.buffer.flush()


def say(text: str) -> None:
    """On standard error: standard output is the command's."""
    click.echo(text, err=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """A terminal that closes, or a `kill`, stops as Ctrl-C does: what was to be deleted at the end still is."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [(one, signal.signal(one, stop)) for one in signals]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)


def remove(where: Address, deletion: commands.Arguments) -> bool:
    """Deletes a machine; False, and loud words, if that fails."""
    try:
        gcloud.call(deletion, where.name, show=show)
    except MachineNotFoundError:
        say(f"{where.name} is gone already")
        return True
    except (MachineError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        bar = "!" * 78
        say(
            f"{bar}\n{where.name} COULD NOT BE DELETED: assume that it is still there, and costs money.\n{why}\n\n"
            f"Delete it with:\n\n    {commands.quoted(deletion)}\n{bar}"
        )
        return False
    say(f"deleted {where.name}")
    return True


def still_there(stay: Stay, *, failed: bool) -> None:
    """Says that a machine goes on, what is to be done with it, and how to delete it."""
    where = stay.where
    state = _state(where) if failed else "READY"
    if state == "gone":
        say(f"there is no machine {where.name}: nothing costs money")
        return
    if state in FREE_STATES:
        say(f"{where.name} is {state}: what ran on it is lost, and what is left of it is yours to delete.")
    elif state:
        say(f"{where.name} is still there ({state}), and costs money until it is deleted.")
    else:
        say(f"Whether {where.name} is still there cannot be seen from here: assume so, and that it costs money.")
    if stay.running and state not in FREE_STATES:
        say(f"The command goes on there.\n  go on:   {hint('run', where, '--resume')}")
    say(f"  delete:  {hint('delete', where)}")


def _state(where: Address) -> str:
    """The state of a machine, `gone`, or "" if that cannot be known."""
    try:
        return gcloud.machine(where).state
    except MachineNotFoundError:
        return "gone"
    except (MachineError, KeyboardInterrupt):
        return ""


def costs(one: Machine | QueuedRequest) -> bool:
    """Whether a machine, or a request that has one, costs money now."""
    return one.state not in (FREE_STATES if isinstance(one, Machine) else _WITHOUT_MACHINE)
