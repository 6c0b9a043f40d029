"""The group of commands that `systolic`, `systolic table` and `systolic tpu` are."""

from __future__ import annotations

import click

from systolic.cli.help_format import HelpContext
from systolic.support.choices import unknown_name

_MAX_SENTENCE = 300  # characters, more than any first sentence has


class Group(click.Group):
    """A group of commands that suggests a similar command for an unknown one, and formats the help of its commands."""

    context_class = HelpContext

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, whose help is formatted as the group's; None if there is none of this name."""
        command = self.find_command(ctx, cmd_name)
        if command is not None:
            command.context_class = HelpContext
        return command

    def find_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command as it was defined; None if there is none of this name."""
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the first sentence of its help, which is not cut."""
        named = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(_MAX_SENTENCE)) for name, command in named.items() if command]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and the other arguments.

        Raises:
          click.UsageError: the command is unknown, or an option comes before it.
        """
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            raise click.UsageError(unknown_name("command", name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)
