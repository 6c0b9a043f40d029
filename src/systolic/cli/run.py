"""`systolic run`: an unmodified Python script as if on a TPU."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import click

from systolic import running
from systolic.chips import Chip
from systolic.cli.complaints import complain
from systolic.cli.options import WRITTEN_FILE, Workers, chip_option, flag_option, output_options, worker_options
from systolic.cli.output import check_target, give, note, write_text
from systolic.cli.progress import progress_bar, result_of
from systolic.cli.run_output import program_record, run_summary, show_script
from systolic.cli.slice_options import topology_option
from systolic.cli.stopping import STOPPED
from systolic.cli.tables import chosen_format
from systolic.compiler import check_available
from systolic.running import HostSlice, Recording
from systolic.steps import TIME_LIMIT_S
from systolic.support.bugs import raise_own
from systolic.support.regular_file import read_regular

_RECORDS = Path(running.__file__).parent
_SPANS_OF_A_TRACE = 5_000  # of each program and kind, from the beginning and from the end


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; an unknown option may be meant for the script."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            text = f"{error.format_message()} Options of the script follow after --."
            raise click.UsageError(text, ctx) from error


@click.command(cls=_Command)
@click.argument("script", metavar="SCRIPT.py", type=click.Path(path_type=Path))
@click.argument("script_arguments", metavar="[-- ARGUMENTS]", nargs=-1, type=click.UNPROCESSED)
@chip_option(several=False)
@flag_option
@topology_option("The slice that the script runs on, for scripts with a mesh")
@click.option("--no-values", is_flag=True, help="Compute nothing: results of jitted functions are zeros.")
@click.option(
    "--trace",
    "trace_file",
    type=WRITTEN_FILE,
    help="Write a timeline of the calls as a Chrome trace, which Perfetto opens.",
)
@worker_options("one program", time_limit_s=TIME_LIMIT_S)
@output_options
def run(
    script: Path,
    script_arguments: tuple[str, ...],
    chips: tuple[Chip, ...],
    topology: str | None,
    no_values: bool,
    trace_file: Path | None,
    workers: Workers,
    json_file: str | None,
    quiet: bool,
) -> int:
    """Run an unmodified Python script as if on a TPU: each jitted call is timed, and computed on the CPU.

    Each distinct program (a jitted function, shapes and static arguments) is compiled for the chip and simulated once.
    Pallas kernels run in TPU interpret mode. At the end there is a table by call. Operations outside of jitted
    functions run on the CPU and have no time. Ctrl-C ends the script; the table follows.

    With --topology the script sees as many devices as the slice has, and what it shards over them is compiled for the
    slice.

    Exit code: the script's. 1: it ended well, but a program has no time, or the arrays do not fit HBM.

    \b
    Examples:
      systolic run examples/train_mlp.py --chip v6e
      systolic run examples/train_mlp.py --chip v5e --no-values --trace calls.json -- --width 4096
      systolic run examples/train_sharded.py --chip v6e --topology 2x4
    """
    _check_script(script)
    check_target(json_file)
    if trace_file is not None:
        if trace_file.suffix == ".pb":
            raise click.UsageError(f"{trace_file}: calls are written as a Chrome trace; name it {trace_file.stem}.json")
        check_target(str(trace_file))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # computes the values
    check_available()
    (chip,) = chips
    host_slice = None if topology is None else HostSlice.of(chip, topology)
    # Standard output has nothing but the result if a program is to read it.
    aside = contextlib.redirect_stdout(sys.stderr) if json_file == "-" or chosen_format() != "table" else None
    with _started_as(script, script_arguments), workers.pool() as pool:  # workers import its neighbours as well
        recording = Recording(
            pool,
            chip,
            values=not no_values,
            spans=0 if trace_file is None else _SPANS_OF_A_TRACE,
            started=lambda label: note(f"{label}: compiling for {chip.name}", quiet=quiet),
            host_slice=host_slice,
        )
        with recording.active(), aside or contextlib.nullcontext():
            code = _exit_code(script)
            sys.stdout.flush()
        with progress_bar(quiet=quiet) as bar:
            jobs = [(label, job) for label, job in recording.jobs() if not job.done()]
            bar.planned(len(jobs))
            for label, job in jobs:
                job.add_done_callback(lambda _, label=label: bar.done(label))
            for _, job in jobs:
                with contextlib.suppress(Exception):  # the result says so
                    result_of(job, pool, bar)
        result = recording.result()
    if trace_file is not None:
        from systolic.report.calls_trace import calls_trace

        write_text(trace_file, json.dumps(calls_trace(result, title=script.name), allow_nan=False))
        note(f"trace {trace_file}", quiet=quiet)
    rows = (program_record(result, program) for program in result.programs)  # numbered in this order
    give(json_file, "run", rows, run_summary(result, code), lambda: show_script(result, chip))
    return code or (1 if result.failures or not result.fits else 0)


def _check_script(script: Path) -> None:
    """Refuse what is not a Python file before any worker starts.

    Raises:
      click.UsageError: there is no such file, or it is not Python.
    """
    if script.suffix != ".py" and not script.is_dir():
        raise click.UsageError(f"{script} is not a Python script: its name does not end with .py")
    try:
        ast.parse(read_regular(script), filename=str(script))
    except OSError as error:
        raise click.UsageError(f"cannot read {script}: {error.strerror}") from error
    except SyntaxError as error:
        raise click.UsageError(f"{script}:{error.lineno or 1} is not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte, or a nest too deep
        raise click.UsageError(f"{script} is not Python: {error}") from error


def _exit_code(script: Path) -> int:
    """Run a script as Python does; return its exit code, and print its traceback."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return int(leaving.code or 0)
        complain(str(leaving.code))
        return 1
    except KeyboardInterrupt:
        complain(f"{script}: stopped")
        return STOPPED
    except Exception as error:  # noqa: BLE001 -- the script's own
        raise_own(error)
        complain(_traceback(error, script))
        return 1
    return 0


def _traceback(error: Exception, script: Path) -> str:
    """Return the traceback that Python prints: from the script on, without the frames that record its calls."""
    shown = link = traceback.TracebackException.from_exception(error)
    while link is not None:
        frames = [frame for frame in link.stack if Path(frame.filename).parent != _RECORDS]
        from_script = itertools.dropwhile(lambda frame: frame.filename != str(script), frames)
        link.stack = traceback.StackSummary.from_list(list(from_script) or frames)
        link = link.__cause__ or link.__context__
    return "".join(shown.format()).rstrip()


@contextlib.contextmanager
def _started_as(script: Path, arguments: tuple[str, ...]) -> Iterator[None]:
    """Give a script its command line, and let it import its neighbours."""
    before = sys.argv, sys.path
    sys.argv = [str(script), *arguments]
    sys.path = [str(script.resolve().parent), *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = before
