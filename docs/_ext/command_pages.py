"""Make a page for each command of the command line from its help: text, examples and options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from systolic.cli.commands import TASKS
from systolic.cli.main import cli

_LITERAL = "\b\n"  # click's mark of a paragraph that keeps its lines


def command_pages() -> dict[str, str]:
    """Return name below docs/generated → Markdown, for the commands and for their list."""
    root = click.Context(cli, info_name="systolic")
    pages = {}
    sections = ["# The command line", *_paragraphs(cli), "`systolic COMMAND --help` shows the same in a terminal."]
    for task, commands in TASKS.items():
        rows = [f"| [{name}](commands/{name}.md) | {_escaped(sentence)} |" for name, sentence in commands.items()]
        sections += [f"## {task}", "\n".join(["| command | what it does |", "|---|---|", *rows])]
        for name in commands:
            command = cli.get_command(root, name)
            assert command is not None
            pages[f"commands/{name}"] = "\n\n".join(_sections(command, root, name, 1)) + "\n"
    names = "\n".join(f"{page.rpartition('/')[2]} <{page}>" for page in pages)
    sections.append(f"```{{toctree}}\n:hidden:\n\n{names}\n```")
    return {"commands": "\n\n".join(sections) + "\n", **pages}


def _sections(command: click.Command, parent: click.Context, name: str, level: int) -> Iterator[str]:
    """Yield heading, usage, text and options of a command, and the same for its subcommands."""
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} `{context.command_path}`"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield from _paragraphs(command)
    records = [record for param in command.params if (record := param.get_help_record(context))]
    rows = [f"| `{_cell(option)}` | {_cell(_escaped(words))} |" for option, words in records if words]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])
    if isinstance(command, click.Group):
        for subname in command.list_commands(context):
            subcommand = command.get_command(context, subname)
            assert subcommand is not None
            yield from _sections(subcommand, context, subname, level + 1)


def _paragraphs(command: click.Command) -> Iterator[str]:
    """Yield the paragraphs of a command's help; examples stay as they are, in a block of their own."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if not paragraph.startswith(_LITERAL):
            yield _escaped(" ".join(paragraph.split()))
            continue
        title, *lines = paragraph.removeprefix(_LITERAL).splitlines()
        yield _escaped(title)
        yield "\n".join(f"    {line.strip()}" for line in lines)


def _escaped(words: str) -> str:
    """Return plain text as Markdown: options as code, other marks escaped. Text in backquotes is code already."""
    parts = re.split(r"(`[^`]*`)", words)
    return "".join(part if part.startswith("`") else _marked(part) for part in parts)


def _marked(words: str) -> str:
    words = re.sub(r"([\\<*_\[\]])", r"\\\1", words)
    return re.sub(r"(?<![\w-])--[a-z][a-z0-9-]*", r"`\g<0>`", words)


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")
