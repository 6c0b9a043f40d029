"""`systolic tpu run`: a command of systolic's on a TPU machine, and its results here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from systolic.cli.output import make_folder, printable
from systolic.cli.tpu_leaving import Stay, interruptible, remove, say, show, still_there
from systolic.cli.tpu_options import dry_run_option, order_options, place_options, print_commands
from systolic.cloud import (
    Address,
    BusyError,
    MachineError,
    MachineNotFoundError,
    MachineRequestError,
    NameTakenError,
    Order,
    QuotaError,
    SignInError,
    commands,
    gcloud,
    jobs,
    order,
)
from systolic.cloud.offers import address, chip_of
from systolic.cloud.project import Project, check_paths, project
from systolic.cloud.wheel import Wheel

_INTERRUPTED = 130
_NAMED = 5  # files that are not copied, and results that are not taken


@click.command()
@click.argument("name")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENTS]")
@place_options
@click.option("--create", is_flag=True, help="Make the machine first; the four options below say which.")
@order_options
@click.option("--delete-after", is_flag=True, help="Delete the machine at the end, also after a failure or Ctrl-C.")
@click.option("--resume", is_flag=True, help="Follow the command that was begun last, and fetch its results.")
@click.option("--replace", is_flag=True, help="Stop a command that still runs there.")
@click.option(
    "--results",
    "results_folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tpu-results"),
    show_default=True,
    metavar="FOLDER",
    help="Results go to FOLDER/NAME/ and a folder for each run.",
)
@dry_run_option
@click.pass_context
def run(
    context: click.Context,
    name: str,
    command: tuple[str, ...],
    zone: str,
    project: str,
    create: bool,
    chip_name: str,
    accelerator_type: str,
    runtime_version: str,
    spot: bool,
    delete_after: bool,
    resume: bool,
    replace: bool,
    results_folder: Path,
    dry_run: bool,
) -> int:
    """Run a command of systolic's on a machine, with a copy of the project, and bring its results back.

    Copied are the files that git tracks here, as they are now; outside a checkout, none. systolic is installed there
    from its checkout, or as it is installed here. What the command prints comes out here at its end; files that it
    writes, such as those of --json and --plot, lie in tpu-results/NAME/. The machine goes on running, and costs money,
    unless --delete-after. Exit code: the command's, or 1 if it could not be run.

    \b
    Examples:
      systolic tpu run my-tpu --create --chip v6e --delete-after -- tune 4096,4096,4096 --chip v6e --measure 3
      systolic tpu run my-tpu -- ladder all --chip v5e --json ladder.json
      systolic tpu run my-tpu --resume
      systolic tpu run my-tpu --dry-run -- chips
    """
    where = address(name, zone, project)
    wanted = (chip_name, accelerator_type, runtime_version, spot)
    if resume == bool(command):
        raise click.UsageError("give a command behind --, such as: -- tune 4096,4096,4096 --measure 3; or --resume")
    if resume and (create or replace):
        raise click.UsageError("--resume goes with neither --create nor --replace: the command is there already")
    if any(wanted) and not create:
        raise click.UsageError("--chip, --accelerator-type, --runtime-version and --spot say what --create makes")
    parsed: dict[str, Any] = {} if resume else _read_command(context, command)
    check_paths(command)
    made = None
    if create:
        made = order(
            where,
            chip_name=chip_name if chip_name or accelerator_type else _chip_of(parsed),
            accelerator_type=accelerator_type,
            runtime_version=runtime_version,
            spot=spot,
        )
        _check_chip(parsed, made.accelerator_type)
    if dry_run:
        print_commands(_lines(where, made, resume, replace, delete_after))
        return 0
    gcloud.found()
    parent = results_folder / name
    make_folder(parent, parent)
    if not (results_folder / ".gitignore").exists():
        (results_folder / ".gitignore").write_text("*\n")  # results of one run are no part of the next one's project
    copied = None if resume else _project()
    stay = Stay(where, there=made is None)
    code, failed = 1, True
    with interruptible():
        try:
            _prepare(stay, made, parsed)
            code = _job(stay, copied, command, replace, parent)
            failed = False
        except BusyError as error:
            say(f"systolic: {error}")
            delete_after = False  # what runs there is not this command's to end
        except MachineError as error:
            say(f"systolic: {error}")
        except KeyboardInterrupt:
            say("stopped")
            code = _INTERRUPTED
        finally:
            gone = True
            if stay.there and delete_after:
                gone = remove(where, stay.deletion)
            elif stay.there:
                still_there(stay, failed=failed)
    return code if gone else code or 1


def _lines(
    where: Address, made: Order | None, resume: bool, replace: bool, delete_after: bool
) -> list[commands.Arguments]:
    """All that `run` calls if nothing fails."""
    job = "" if resume else jobs.new_job()
    lines = [commands.describe(where)]
    if made is not None:
        lines += [commands.create(made), commands.describe(where)]
    if resume:
        lines += [jobs.follow_command(where)]
    else:
        lines += [jobs.upload_command(where, job), jobs.start_command(where, job, replace=replace)]
    lines += [jobs.fetch_command(where, job)]
    return [*lines, commands.delete(where)] if delete_after else lines


def _read_command(context: click.Context, command: Sequence[str]) -> dict[str, Any]:
    """Reads the command as the machine will, so that a wrong call costs nothing; its options."""
    root = context.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    found = group.get_command(root, command[0])
    if found is None or found is (context.parent or root).command:
        names = ", ".join(sorted(name for name in group.list_commands(root) if name != "tpu"))
        raise click.UsageError(f"{command[0]!r} is no command of systolic's to run there; there are {names}")
    with found.make_context(command[0], list(command[1:]), parent=root) as read:
        return read.params


def _chip_of(parsed: Mapping[str, Any]) -> str:
    """The chip that a command is for, if it is for one."""
    chips = parsed.get("chips") or ()
    return chips[0].name if len(chips) == 1 else ""


def _check_chip(parsed: Mapping[str, Any], accelerator_type: str) -> None:
    """Checks that a command that measures finds its chip there.

    Raises:
      MachineRequestError: it does not.
    """
    wanted = [chip.name for chip in parsed.get("chips") or ()]
    there = chip_of(accelerator_type)
    if parsed.get("measured") and there and wanted != [there]:
        raise MachineRequestError(
            f"the command measures on {', '.join(wanted)}, but {accelerator_type} has {there}: give it --chip {there}, "
            "or take another machine"
        )


def _project() -> Project:
    """What goes along, and a word about what does not."""
    found = project(Path.cwd())
    if found.work is None:
        say("this folder is in no git checkout: no file of it is copied")
    for checkout in found.copied:
        say(f"copying {len(checkout.files)} files that git tracks, of {checkout.root}")
        if checkout.untracked:
            # Modules first: one that is missing there ends the command when the machine is paid for.
            first = sorted(checkout.untracked, key=lambda name: not name.endswith(".py"))
            named = ", ".join(map(printable, first[:_NAMED])) + (", …" if len(first) > _NAMED else "")
            say(f"not copied, since git does not track them (git add does): {named}")
    if isinstance(found.package, Wheel):
        say(f"systolic goes along as it is installed here, with {' '.join(found.pins)}")
    return found


def _prepare(stay: Stay, made: Order | None, parsed: Mapping[str, Any]) -> None:
    """A machine that a command can be run on."""
    where = stay.where
    if made is not None:
        _check_free(where)
        say(f"making {where.name}: {made.accelerator_type} with {made.runtime_version}; it costs money from now on")
        stay.there = True
        try:
            gcloud.call(commands.create(made), where.name, show=show)
        except (QuotaError, NameTakenError, SignInError):
            stay.there = False
            raise
    try:
        machine = gcloud.machine(where)
    except MachineNotFoundError:
        stay.there = False
        raise
    stay.found(machine)
    jobs.check_fit(machine)
    _check_chip(parsed, machine.accelerator_type)


def _check_free(where: Address) -> None:
    """Checks that no machine has the name: after a failure, --delete-after may delete only what was made here."""
    try:
        gcloud.machine(where)
    except MachineNotFoundError:
        return
    raise NameTakenError(f"there is a machine {where.name} already: leave --create out to use it, or take another name")


def _job(stay: Stay, copied: Project | None, command: Sequence[str], replace: bool, parent: Path) -> int:
    where = stay.where
    if copied is None:
        job = ""
        line = jobs.follow_command(where)
    else:
        job = jobs.new_job()
        jobs.upload(where, job, copied, command, show)
        line = jobs.start_command(where, job, replace=replace)
    stay.running = True
    jobs.follow(where, line, show)
    results = jobs.fetch(where, job, parent, show)
    stay.running = False
    click.echo(results.stdout, nl=False)
    if results.stage != "command":
        say(f"systolic could not be installed there; what was said is in {results.folder / 'log.txt'}")
    say(f"results are in {results.folder}" + "".join(f"\n  {printable(str(path))}" for path in results.files))
    for each in results.left_out[:_NAMED]:
        say(f"not taken from the machine: {each}")
    if len(results.left_out) > _NAMED:
        say(f"not taken from the machine: {len(results.left_out) - _NAMED} more")
    return results.exit_code
