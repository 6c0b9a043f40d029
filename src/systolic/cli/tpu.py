"""`systolic tpu`: TPU machines of Google Cloud, for times that are measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from systolic.cli.options import output_options
from systolic.cli.output import check_target, give
from systolic.cli.tables import console, show_table
from systolic.cli.tpu_leaving import (
    Stay,
    costs,
    deletion_of,
    hint,
    interruptible,
    list_hint,
    remove,
    say,
    show,
    still_there,
)
from systolic.cli.tpu_options import dry_run_option, order_options, place_options, print_commands
from systolic.cli.tpu_run import run
from systolic.cloud import (
    Machine,
    MachineNotFoundError,
    NameTakenError,
    Order,
    QueuedRequest,
    QuotaError,
    SignInError,
    commands,
    gcloud,
    order,
)
from systolic.cloud.offers import address
from systolic.report.columns import Column, textual

# Google calls it FAILED also when the machine of a request was taken back before it was there.
_FAILED = ("FAILED", "SUSPENDED")


@click.group()
def tpu() -> None:
    """Make, use and delete TPU machines of Google Cloud, by gcloud. A machine costs money until it is deleted.

    \b
    Examples:
      systolic tpu run my-tpu --create --chip v6e --delete-after -- tune 4096,4096,4096 --chip v6e --measure 3
      systolic tpu create my-tpu --chip v5e --zone us-west4-a --spot
      systolic tpu list
      systolic tpu delete my-tpu
    """


tpu.add_command(run)


@tpu.command()
@click.argument("name")
@place_options
@order_options
@click.option("--queued", is_flag=True, help="Ask for it as a queued resource: it starts when there is one.")
@dry_run_option
def create(
    name: str,
    zone: str,
    project: str,
    chip_name: str,
    accelerator_type: str,
    runtime_version: str,
    spot: bool,
    queued: bool,
    dry_run: bool,
) -> int:
    """Make a machine, and wait until it is there. It costs money from then on, used or not, until it is deleted.

    Exit code 1: there is no machine, for which the message names the reason.

    \b
    Examples:
      systolic tpu create my-tpu --chip v5e --zone us-west4-a
      systolic tpu create my-tpu --chip v6e --zone us-east5-b --spot --queued
      systolic tpu create my-tpu --accelerator-type v5litepod-4 --dry-run
    """
    made = order(
        address(name, zone, project),
        chip_name=chip_name,
        accelerator_type=accelerator_type,
        runtime_version=runtime_version,
        spot=spot,
    )
    line = commands.queue(made) if queued else commands.create(made)
    if dry_run:
        print_commands([line])
        return 0
    say(f"asking for {made.accelerator_type} with {made.runtime_version}{', spot' if spot else ''}")
    _make(made, line, queued)
    return _queued(made) if queued else _runs(made)


def _make(made: Order, line: commands.Arguments, queued: bool) -> None:
    try:
        with interruptible():
            gcloud.call(line, made.address.name, show=show)
    except (QuotaError, NameTakenError, SignInError):
        raise
    except BaseException:
        # It may be in the making for all that: the request was sent.
        if queued:
            say(f"whether {made.address.name} is queued cannot be said: {list_hint(made.address)} shows it")
        else:
            still_there(Stay(made.address), failed=True)
        raise


def _runs(made: Order) -> int:
    where = made.address
    click.echo(
        f"{where.name} ({made.accelerator_type}) runs now, and costs money until it is deleted.\n"
        f"  use:     {hint('run', where)} -- tune 4096,4096,4096 --measure 3\n"
        f"  delete:  {hint('delete', where)}"
    )
    return 0


def _queued(made: Order) -> int:
    where = made.address
    state = gcloud.queued_request(where).state
    if state == "ACTIVE":
        return _runs(made)
    click.echo(f"{where.name} ({made.accelerator_type}) is queued: {state}")
    if state not in _FAILED:
        click.echo("It costs money from the moment that it is ACTIVE, used or not, until it is deleted.")
    click.echo(f"  state:   {list_hint(where)}")
    click.echo(f"  delete:  {hint('delete', where)}")
    return 1 if state in _FAILED else 0


@tpu.command(name="list")
@place_options
@dry_run_option
@output_options
def list_all(zone: str, project: str, dry_run: bool, json_file: str | None, quiet: bool) -> int:
    """List machines and queued requests, and say which cost money. A zone of - asks for all zones.

    \b
    Examples:
      systolic tpu list --zone us-west4-a
      systolic tpu list --zone - --json -
    """
    if dry_run:
        print_commands([commands.list_machines(zone, project), commands.list_queued(zone, project)])
        return 0
    check_target(json_file)
    machines = gcloud.machines(zone, project)
    known = {machine.queued_request for machine in machines}
    waiting = [request for request in gcloud.queued_requests(zone, project) if request.name not in known]
    found: list[Machine | QueuedRequest] = [*machines, *waiting]
    paid = sum(map(costs, found))

    def show_all() -> None:
        if not found:
            click.echo(f"no machines and no requests in {zone or 'the zone of gcloud'}")
            return
        show_table(console(), _COLUMNS, found)
        click.echo(f"\n{paid} of {len(found)} cost money until deleted: systolic tpu delete NAME --zone ZONE")

    give(json_file, "tpu list", map(_record, found), {"found": len(found), "cost_money": paid}, show_all)
    return 0


def _kind(one: Machine | QueuedRequest) -> str:
    return "machine" if isinstance(one, Machine) else "request"


def _record(one: Machine | QueuedRequest) -> dict[str, Any]:
    return {"kind": _kind(one), **dataclasses.asdict(one), "costs_money": costs(one)}


_COLUMNS: tuple[Column[Machine | QueuedRequest], ...] = (
    textual("name", lambda one: one.name),
    textual("kind", _kind),
    textual("zone", lambda one: one.zone),
    textual("accelerator type", lambda one: one.accelerator_type),
    textual("runtime version", lambda one: one.runtime_version, droppable=True),
    textual("state", lambda one: one.state),
    textual("spot", lambda one: "spot" if one.spot else None),
    textual("created", lambda one: one.created[:16].replace("T", " "), droppable=True),
)


@tpu.command()
@click.argument("name")
@click.argument("ssh_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- SSH_ARGUMENTS]")
@place_options
@dry_run_option
def ssh(name: str, ssh_arguments: tuple[str, ...], zone: str, project: str, dry_run: bool) -> int:
    """Open a shell on a machine. What stands behind -- goes to ssh. Its exit code is this one's.

    \b
    Examples:
      systolic tpu ssh my-tpu --zone us-west4-a
      systolic tpu ssh my-tpu -- -L 8888:localhost:8888
    """
    where = address(name, zone, project)
    line = commands.ssh(where, ssh_arguments)
    if dry_run:
        print_commands([line])
        return 0
    try:
        code = gcloud.converse(line, name)
    finally:
        say(f"{name} costs money until it is deleted: {hint('delete', where)}")
    return code


@tpu.command()
@click.argument("name")
@place_options
@click.option("--queued", is_flag=True, help="It is a queued request; without this, gcloud is asked.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@dry_run_option
def delete(name: str, zone: str, project: str, queued: bool, yes: bool, dry_run: bool) -> int:
    """Delete a machine or a queued request, after a question.

    Exit code 1: it is not deleted.

    \b
    Examples:
      systolic tpu delete my-tpu --zone us-west4-a
      systolic tpu delete my-tpu --yes
    """
    where = address(name, zone, project)
    if dry_run:
        known = [] if queued else [commands.describe(where)]
        print_commands([*known, commands.delete_queued(where) if queued else commands.delete(where)])
        return 0
    found: Machine | QueuedRequest
    try:
        found = gcloud.queued_request(where) if queued else gcloud.machine(where)
    except MachineNotFoundError:
        if queued:
            raise
        found = gcloud.queued_request(where)
    line = deletion_of(found, where) if isinstance(found, Machine) else commands.delete_queued(where)
    what = f"{_kind(found)} {name} ({found.accelerator_type}, {found.state}, {found.zone})"
    if not yes:
        try:
            agreed = click.confirm(f"delete {what}?", err=True)
        except click.Abort:  # also where nobody can answer
            say("\nno answer; --yes deletes without asking")
            agreed = False
        if not agreed:
            say(f"not deleted: {what}" + (", which costs money" if costs(found) else ""))
            return 1
    with interruptible():
        return 0 if remove(where, line) else 1
