"""`systolic tpu`: TPU machines of Google Cloud, for times that are measured."""

from __future__ import annotations

import functools
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from systolic.chips import CHIPS, DEFAULT_CHIP
from systolic.cli.complaints import complain
from systolic.cli.groups import Group
from systolic.cli.output import make_folder
from systolic.cloud import gcloud, jobs
from systolic.cloud.errors import BusyError, MachineError, MachineNotFoundError, RefusedError
from systolic.cloud.gcloud import Address, Line
from systolic.cloud.offers import create_line
from systolic.cloud.project import pack

_PLACE_OPTIONS = (
    click.argument("name"),
    click.option("--zone", default="", metavar="ZONE", help="Zone, such as us-west4-a, in place of gcloud's setting."),
    click.option("--project", default="", metavar="ID", help="Project of Google Cloud, in place of gcloud's setting."),
    click.option("--dry-run", is_flag=True, help="Print the commands for a shell, and run nothing."),
)
_MACHINE_OPTIONS = (
    click.option(
        "--chip", "chip_name", default="", metavar="CHIP", help=f"One of {', '.join(CHIPS)}; else {DEFAULT_CHIP}."
    ),
    click.option(
        "--accelerator-type",
        default="",
        metavar="TYPE",
        help="Accelerator type, in place of the smallest one with the chip.",
    ),
    click.option(
        "--runtime-version", default="", metavar="VERSION", help="Software version, in place of the chip's default."
    ),
    click.option("--spot", is_flag=True, help="Cheaper, but Google may take the machine back at any time."),
)


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    return lambda command: functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


@click.group(cls=Group)
def tpu() -> None:
    """Create, use and delete TPU machines of Google Cloud, with gcloud. A machine costs money until it is deleted.

    \b
    Examples:
      systolic tpu run my-tpu --create --chip v6e --delete-after -- tune 4096,4096,4096 --chip v6e --measure 3
      systolic tpu create my-tpu --chip v5e --zone us-west4-a --spot
    """


@tpu.command()
@_options(*_PLACE_OPTIONS, *_MACHINE_OPTIONS)
def create(name: str, zone: str, project: str, dry_run: bool, **machine: Any) -> int:
    """Create a machine, and wait until it is ready. It costs money from then on, used or not, until it is deleted.

    \b
    Examples:
      systolic tpu create my-tpu --accelerator-type v5litepod-4 --dry-run
    """
    where = Address(name=name, zone=zone, project=project)
    line = create_line(where, **machine)
    if dry_run:
        return _print(line)
    gcloud.program()
    with _interruptible():
        try:
            _make(where, line)
        except BaseException as error:
            if not isinstance(error, RefusedError):  # the request may have been sent
                _tell_left(where)
            raise
    _tell_left(where)
    return 0


@tpu.command()
@_options(*_PLACE_OPTIONS)
@click.argument("ssh_arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- SSH_ARGUMENTS]")
def ssh(name: str, zone: str, project: str, dry_run: bool, ssh_arguments: tuple[str, ...]) -> int:
    """Open a shell on a machine. What follows -- goes to ssh. The exit code is the shell's.

    \b
    Examples:
      systolic tpu ssh my-tpu -- -L 8888:localhost:8888
    """
    where = Address(name=name, zone=zone, project=project)
    line = gcloud.line("ssh", where, *(("--", *ssh_arguments) if ssh_arguments else ()))
    if dry_run:
        return _print(line)
    program = gcloud.program()
    try:
        return subprocess.call([program, *line[1:]])
    finally:
        _tell_left(where)


@tpu.command()
@_options(*_PLACE_OPTIONS)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def remove(name: str, zone: str, project: str, dry_run: bool, yes: bool) -> int:
    """Delete a machine, after a question.

    \b
    Examples:
      systolic tpu remove my-tpu --zone us-west4-a --yes
    """
    where = Address(name=name, zone=zone, project=project)
    if dry_run:
        return _print(_deletion(where))
    try:
        agreed = yes or click.confirm(f"delete {shlex.join((name, *where.flags))}?", err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        complain(f"not deleted: {name} goes on, and costs money; --yes deletes it without a question")
        return 1
    with _interruptible():
        return 0 if _delete(where) else 1


@tpu.command()
@_options(*_PLACE_OPTIONS)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND")
@click.option("--create", "creates", is_flag=True, help="Create the machine first, with the four options below.")
@_options(*_MACHINE_OPTIONS)
@click.option("--delete-after", is_flag=True, help="Delete the machine at the end, also after a failure or Ctrl-C.")
@click.option("--results", default="tpu-results", metavar="FOLDER", help="Results go to FOLDER/NAME/, by time.")
def run(
    name: str,
    command: tuple[str, ...],
    creates: bool,
    delete_after: bool,
    results: str,
    dry_run: bool,
    zone: str,
    project: str,
    **machine: Any,
) -> int:
    """Run a command of systolic's on a machine, in a copy of this folder, and bring the files that it writes back.

    Copied are the files that git tracks here, or neither tracks nor ignores. The exit code is the command's, or 1 if it
    could not run. The machine keeps running, and costs money, unless you pass --delete-after.

    \b
    Examples:
      systolic tpu run my-tpu --create --chip v6e --delete-after -- tune 4096,4096,4096 --chip v6e --measure 3
      systolic tpu run my-tpu -- ladder all --chip v5e --json ladder.json
    """
    if any(machine.values()) and not creates:
        raise click.UsageError("--chip, --accelerator-type, --runtime-version and --spot say what --create makes")
    where = Address(name=name, zone=zone, project=project)
    chips = _read_command(command).get("chips") or ()
    if len(chips) == 1 and not machine["accelerator_type"]:
        machine["chip_name"] = machine["chip_name"] or chips[0].name
    creation = create_line(where, **machine) if creates else None
    job = jobs.new_job()
    if dry_run:
        description = gcloud.line("describe", where, "--format=json")
        start = (description, creation, description) if creation else (description,)
        return _print(*start, *jobs.lines(where, job), *((_deletion(where),) if delete_after else ()))
    gcloud.program()
    parent = _results_folder(Path(results, name))
    exists, code = not creation, 1
    with _interruptible(), tempfile.TemporaryDirectory() as folder:
        count = pack(Path.cwd(), Path(folder, f"{job}.tar.gz"), job, command)
        complain("no file is copied: this is not a git checkout" if count is None else f"copying {count} files")
        try:
            if creation:
                _check_free(where)
                exists = True
                _make(where, creation)
            jobs.check_fit(where)
            code, written = jobs.run(where, job, Path(folder), parent)
            complain(f"results are in {written}" if written else "the command wrote no files")
        except (MachineError, OSError) as error:
            complain(f"systolic: {error}")
            exists = exists and not isinstance(error, MachineNotFoundError | RefusedError)
            delete_after = delete_after and not isinstance(error, BusyError)  # the running command is another user's
        except KeyboardInterrupt:
            complain("stopped")
            code = 130
        finally:
            if exists and delete_after:
                code = code if _delete(where) else code or 1
            elif exists:
                _tell_left(where)
    return code


def _read_command(command: Sequence[str]) -> dict[str, Any]:
    """Read a command as the machine will, so that a wrong call costs nothing; return its options."""
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    read = root.command.get_command(root, command[0])
    if read is None or read is tpu:
        raise click.UsageError(f"{command[0]!r} is not a command of systolic's that runs on a machine")
    for word in command:
        path = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        if path.startswith(("/", "~", "../")):
            raise click.UsageError(f"{path} is not there on the machine: name a file in this folder, such as x.json")
    with read.make_context(command[0], list(command[1:]), parent=root) as parsed:
        return parsed.params


def _results_folder(folder: Path) -> Path:
    """Make a folder, which git ignores if it is new: results are no part of the next run's copy."""
    is_new = not folder.exists()
    make_folder(folder, folder)
    if is_new:
        (folder / ".gitignore").write_text("*\n")
    return folder


def _check_free(where: Address) -> None:
    """Check that no machine has the name: --delete-after may delete only what was made here."""
    try:
        gcloud.state(where)
    except MachineNotFoundError:
        return
    raise RefusedError(f"there is a machine {where.name} already: drop --create to use it, or take another name")


def _make(where: Address, creation: Line) -> None:
    complain(f"making {where.name}, which costs money from now on: {shlex.join(creation)}")
    gcloud.call(creation, where.name)


def _deletion(where: Address) -> Line:
    return gcloud.line("delete", where, "--quiet")


def _delete(where: Address) -> bool:
    """Delete a machine; if that fails, print a warning that it still costs money, and return False."""
    try:
        gcloud.call(_deletion(where), where.name)
    except MachineNotFoundError as error:
        complain(f"systolic: {error}")
    except (MachineError, KeyboardInterrupt) as error:
        complain(
            f"{'!' * 78}\n{where.name} COULD NOT BE DELETED: assume that it is still there, and costs money.\n"
            f"{str(error) or 'interrupted'}\nDelete it with:\n\n    {shlex.join(_deletion(where))}\n{'!' * 78}"
        )
    else:
        complain(f"deleted {where.name}")
        return True
    return False


def _tell_left(where: Address) -> None:
    """Say that a machine goes on, and how to delete it."""
    try:
        state = f"is there ({gcloud.state(where)[0]})"
    except MachineNotFoundError:
        complain(f"there is no machine {where.name}: nothing costs money")
        return
    except (MachineError, KeyboardInterrupt):
        state = "may be there"
    hint = shlex.join(["systolic", "tpu", "remove", where.name, *where.flags])
    complain(f"{where.name} {state}, and costs money until it is deleted: {hint}")


def _print(*lines: Line) -> int:
    for line in lines:
        click.echo(shlex.join(line))
    return 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Stop at a closed terminal or a `kill` as at Ctrl-C, so that machines are still deleted at the end."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [(number, signal.signal(number, signal.default_int_handler)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
