"""Help texts on narrow terminals."""

from __future__ import annotations

import re

import click
import pytest

from systolic.cli.commands import TASKS
from systolic.cli.help_format import HelpContext
from systolic.cli.main import cli

WIDTHS = (60, 80)


def commands() -> list[click.Command]:
    root = HelpContext(cli, info_name="systolic")
    top = [cli.get_command(root, name) for names in TASKS.values() for name in names]
    inner = [
        group.get_command(HelpContext(group, parent=root), name)
        for group in top
        if isinstance(group, click.Group)
        for name in group.list_commands(root)
    ]
    return [command for command in [cli, *top, *inner] if command is not None]


def help_text(command: click.Command, width: int) -> str:
    assert command.context_class is HelpContext
    with command.context_class(command, info_name=command.name, terminal_width=width) as context:
        return command.get_help(context)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_help_text_is_wider_than_the_terminal_or_breaks_a_word(width: int) -> None:
    for command in commands():
        narrow, wide = help_text(command, width), help_text(command, 10_000)
        assert max(map(len, narrow.splitlines())) <= width, command.name
        words = set(re.split(r"[\s\\]+", wide))
        broken = [word for word in re.split(r"[\s\\]+", narrow) if word not in words]
        assert not broken, (command.name, broken)


def test_an_example_is_continued_as_in_a_shell() -> None:
    command = click.Command(
        "c", help="Sentence.\n\n\b\nExample:\n  systolic simulate file.py:function --chip v5e,v6e,v7x"
    )
    text = help_text_of(command, 40)
    assert "  systolic simulate file.py:function \\\n    " in text


def help_text_of(command: click.Command, width: int) -> str:
    command.context_class = HelpContext
    return help_text(command, width)


def test_a_groups_list_cuts_no_sentence() -> None:
    for command in commands():
        if isinstance(command, click.Group):
            assert "..." not in help_text(command, 80).replace("[ARGS]...", "")
