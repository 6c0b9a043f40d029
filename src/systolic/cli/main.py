"""The `systolic` command and its exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from systolic import __version__
from systolic.bugs import SystolicBug, is_own
from systolic.chips import FlagError, SliceError, UnknownChipError, UnsupportedDtypeError
from systolic.chips.constants import ConstantsError
from systolic.cli.bench import bench
from systolic.cli.calibrate import calibrate
from systolic.cli.check import check
from systolic.cli.chips import chips
from systolic.cli.compare import compare
from systolic.cli.doctor import doctor
from systolic.cli.explain import explain
from systolic.cli.ladder import ladder
from systolic.cli.lessons import lessons
from systolic.cli.output import complain, lost_output
from systolic.cli.plan import plan
from systolic.cli.results import WrongFileError
from systolic.cli.simulate import simulate
from systolic.cli.tpu import tpu
from systolic.cli.trial_table import trial_table
from systolic.cli.tune import tune
from systolic.cli.validate import validate
from systolic.cloud import MachineError, MachineRequestError, ProjectError
from systolic.compiler import CompilerFlagError, CompilerMissing, NamedFunctionError
from systolic.explaining import ExplanationError
from systolic.schedule import TilesError
from systolic.spec import SpecError
from systolic.store import StoreError, TrialsFileError
from systolic.timing import NoDeviceError
from systolic.tuning import ClusterError, StalledError
from systolic.validation.calibration import TooFewProgramsError
from systolic.validation.published import PublishedFileError

# Of sysexits.h: an error of the program itself.
_BUG = 70

_WRONG_CALL = (
    ClusterError,
    MachineRequestError,
    NoDeviceError,
    ProjectError,
    StalledError,
    ConstantsError,
    ExplanationError,
    FlagError,
    CompilerFlagError,
    NamedFunctionError,
    SliceError,
    SpecError,
    StoreError,
    PublishedFileError,
    TilesError,
    TooFewProgramsError,
    TrialsFileError,
    UnknownChipError,
    UnsupportedDtypeError,
    WrongFileError,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="systolic")
def cli() -> None:
    """Multiply matrices on TPUs with Pallas, and know without a TPU whether a kernel is right and how fast it is.

    Times are labelled: `modelled` is arithmetic, `simulated` is the real compiler's program executed on a model of the
    chip, `measured` is a device.

    Exit code 0: fine. 1: the question was answered "no", or this machine lacks what it takes. 2: the call was wrong.
    70: a bug of systolic.

    \b
    Example:
      systolic ladder all --chip v5e --dtype bfloat16 --sizes 512,1024,2048
    """


cli.add_command(bench)
cli.add_command(plan)
cli.add_command(tune)
cli.add_command(trial_table)
cli.add_command(ladder)
cli.add_command(simulate)
cli.add_command(check)
cli.add_command(explain)
cli.add_command(compare)
cli.add_command(lessons)
cli.add_command(chips)
cli.add_command(validate)
cli.add_command(calibrate)
cli.add_command(tpu)
cli.add_command(doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code.

    Args:
      arguments: as after the program's name; None: those of this process.
    """
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments), prog_name="systolic", standalone_mode=False
        )
        sys.stdout.flush()  # while an error can still be told
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "systolic"
        complain(f"{command}: {error.format_message()} (see {command} --help)")
        return 2
    except click.ClickException as error:
        complain(f"systolic: {error.format_message()}")
        return 2
    except click.Abort:
        click.echo("stopped", err=True)
        return 130
    except _WRONG_CALL as error:
        complain(f"systolic: {error}")
        return 2
    except (CompilerMissing, MachineError) as error:
        complain(f"systolic: {error}")
        return 1
    except OSError as error:
        if not lost_output(error):
            raise
        return 1
    except SystemExit:
        return 1  # click and rich leave so when the reader of standard output has gone
    except Exception as error:
        if not is_own(error):
            raise
        bug = SystolicBug.of(error)
        complain(f"systolic: {bug}\n\n{bug.details}".rstrip("\n"))
        return _BUG
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
