"""The `systolic` command and its exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from systolic import __version__
from systolic.cli.commands import Commands
from systolic.cli.complaints import complain, lost_output
from systolic.support.bugs import SystolicBug, is_own
from systolic.support.call_errors import LackingError, WrongCallError

# Of sysexits.h: an error of the program itself.
_BUG = 70


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="systolic")
def cli() -> None:
    """Debug and speed up Pallas TPU kernels without a TPU.

    Times are labelled: `modelled` is arithmetic, `simulated` is the real compiler's program executed on a model of the
    chip, `measured` is the time of a device.

    Exit code 0: success. 1: the answer is "no", or this machine lacks something that the command needs. 2: the call was
    wrong. 70: a bug of systolic.

    \b
    Example:
      systolic ladder all --chip v5e --dtype bfloat16 --sizes 512,1024,2048
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with these arguments, by default the process's own; return its exit code."""
    if sys.stdout is None:  # `systolic chips >&-`: the next file that is opened would take its place
        complain("systolic: standard output is closed: nothing can be written; send it to a file, or to /dev/null")
        return 1
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments), prog_name="systolic", standalone_mode=False
        )
        sys.stdout.flush()  # while an error can still be printed
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
    except WrongCallError as error:
        complain(f"systolic: {error}")
        return 2
    except LackingError as error:
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
