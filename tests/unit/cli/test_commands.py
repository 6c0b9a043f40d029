"""The list of commands that `systolic --help` shows without importing them."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import systolic
from systolic.cli.commands import TASKS
from systolic.cli.main import cli

SENTENCES = [(name, sentence) for commands in TASKS.values() for name, sentence in commands.items()]


@pytest.mark.parametrize(("name", "sentence"), SENTENCES)
def test_the_list_says_what_the_command_says_of_itself(name: str, sentence: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    help_text = " ".join((command.help or "").replace("\b", "").split())
    assert re.split(r"(?<=\.) ", help_text)[0] == sentence


@pytest.mark.parametrize(("name", "_"), SENTENCES)
def test_what_gives_json_gives_tables_in_every_form(name: str, _: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for each in command.commands.values() if isinstance(command, click.Group) else [command]:
        options = {option for parameter in each.params for option in parameter.opts}
        assert "--format" in options or "--json" not in options, each.name


def test_help_cuts_no_sentence_in_80_columns() -> None:
    output = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    shown = " ".join(output.split())
    assert all(sentence in shown for _, sentence in SENTENCES)
    assert max(map(len, output.splitlines())) <= 80


def test_an_unknown_command_is_refused_by_name() -> None:
    with pytest.raises(click.UsageError, match="simulat"):
        cli.main(["simulat"], standalone_mode=False)


def test_help_imports_neither_jax_nor_numpy() -> None:
    code = "import sys; from systolic.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"jax", "numpy", "rich"} & set(done.stdout.splitlines()[-1].split())


def test_each_public_name_has_a_door() -> None:
    assert set(systolic.__all__) <= set(dir(systolic))
    for name in systolic.__all__:
        assert getattr(systolic, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="matmull"):
        systolic.matmull  # noqa: B018  # type: ignore[attr-defined]
