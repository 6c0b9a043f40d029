"""The group of commands that `systolic`, `systolic table` and `systolic tpu` are."""

from __future__ import annotations

import click

from systolic.support.choices import unknown_name


class Group(click.Group):
    """A group of commands that suggests a similar command for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and the other arguments.

        Raises:
          click.UsageError: the command is unknown, or an option stands in its place.
        """
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            raise click.UsageError(unknown_name("command", name, self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)
