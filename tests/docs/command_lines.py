"""Check that the program, subcommand, options and values of a command line exist, without running it."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import click

from systolic.cli.main import cli


class WrongCommandError(AssertionError):
    """A command of the docs that its program would not take."""


def check_parsed(words: list[str], folder: Path, root: Path) -> None:
    """Parses a command as its program would.

    Args:
      words: of the command line.
      folder: where it would run; a file that it reads may be one that an earlier command writes, so files need not be.
      root: of the repository.

    Raises:
      WrongCommandError: an option, a value, a subcommand or a target that there is not.
    """
    program, arguments = words[0], words[1:]
    if program == "systolic":
        parsed(cli, arguments)
    elif program == "make":
        for target in arguments:
            if not re.search(rf"^{re.escape(target)}:", (root / "Makefile").read_text("utf-8"), re.MULTILINE):
                raise WrongCommandError(f"the Makefile has no target {target}")
    elif program == "dask":
        from distributed.cli import dask_scheduler, dask_worker

        parsed({"scheduler": dask_scheduler.main, "worker": dask_worker.main}[arguments[0]], arguments[1:])
    elif arguments[:3] == ["-m", "pip", "install"]:
        extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
        for extra in re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*?)\]", " ".join(arguments)))):
            if extra not in extras:
                raise WrongCommandError(f"pyproject.toml has no extra {extra}")
    elif program == "python" and arguments[0] == "-m":
        if importlib.util.find_spec(arguments[1]) is None:
            raise WrongCommandError(f"there is no module {arguments[1]}")
    elif program == "python":
        parsed(main_of(folder / arguments[0]), arguments[1:])
    elif program != "sed":
        raise WrongCommandError(f"nobody knows how to parse {program}")


def main_of(file: Path) -> click.Command:
    """The command that a script is."""
    if not file.is_file():
        raise WrongCommandError(f"there is no {file.name}")
    spec = importlib.util.spec_from_file_location(f"script_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(file.parent))  # as Python does for a script
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
        del sys.modules[spec.name]
    return module.main


def parsed(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """Lets click parse the arguments, and those of the subcommand that they name.

    Raises:
      WrongCommandError: click refuses them.
    """
    try:
        if not isinstance(command, click.Group):
            with command.make_context(command.name, list(arguments), parent=parent):
                return
        with command.make_context(command.name, list(arguments), parent=parent) as context:
            rest = [*context._protected_args, *context.args]
            _, found, left = command.resolve_command(context, rest)
            assert found is not None
            parsed(found, left, context)
    except click.exceptions.BadParameter as error:
        if isinstance(error.param and error.param.type, click.Path) and "does not exist" in error.message:
            return
        raise WrongCommandError(f"{' '.join(arguments)}: {error.format_message()}") from error
    except click.UsageError as error:
        raise WrongCommandError(f"{' '.join(arguments)}: {error.format_message()}") from error
