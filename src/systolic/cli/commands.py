"""The commands by task, each imported when it is called: `systolic --help` reads nothing but this list."""

from __future__ import annotations

import importlib

import click

from systolic.cli.groups import Group

# By task, command → the first sentence of its own help.
TASKS = {
    "Products": {
        "plan": "Say how systolic.matmul would compute lhs[M,K] @ rhs[K,N] on a chip.",
        "tune": "Find the fastest tiles for lhs[M,K] @ rhs[K,N], or for any function, without the chip.",
        "table": "Show, compare, export and import the trials that systolic tune has stored.",
        "bench": "Race systolic.matmul, with the planner's tiles, against XLA on suites of products, or any "
        "op on one spec.",
    },
    "Any JAX function": {
        "check": "Say what is wrong with a function's Pallas kernels: rules, the compiler's verdict, and a "
        "run on the CPU.",
        "simulate": "Compile a JAX function for a TPU, execute the compiled program on a model of the chip, "
        "and show where time goes.",
        "run": "Run an unmodified Python script as if on a TPU: each jitted call is timed, and computed on the CPU.",
        "step": "Predict a whole step of a sharded model: its time, tokens per second, MFU, HBM, and where the time "
        "goes.",
        "explain": "Explain where a function's time on a TPU goes, and simulate the changes that may save time.",
        "compare": "Compare what `systolic explain --json` wrote of a function before and after a change.",
    },
    "To learn": {
        "ladder": "Run the ladder of eight matmul kernels: check each one, compile it, and show how fast it is.",
        "lessons": "Run lessons by NAME, or all; without a name, list them.",
        "chips": "Show the chips that systolic knows; with NAMES, also the source of each number.",
    },
    "The model of a chip": {
        "validate": "Simulate programs whose times were published, and show how far off the simulated times are.",
        "calibrate": "Fit constants of a chip's model to half of the published programs in CSV, and check them on the "
        "other half.",
    },
    "Machines": {
        "doctor": "Show what works on this machine: versions, compiler, devices, cache, trial store, extras.",
        "tpu": "Create, use and delete TPU machines of Google Cloud, with gcloud.",
    },
}
_MODULES = {"table": "trial_table"}  # commands whose file has another name


class Commands(Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands by task."""
        return [name for commands in TASKS.values() for name in commands]

    def find_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command; return None if there is no such command."""
        if name not in self.list_commands(ctx):
            return None
        module = _MODULES.get(name, name)
        command: click.Command = getattr(importlib.import_module(f"systolic.cli.{module}"), module)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a table for each task, with sentences that are not cut."""
        widest = max(map(len, self.list_commands(ctx)))
        for task, commands in TASKS.items():
            with formatter.section(task):
                formatter.write_dl([(name.ljust(widest), sentence) for name, sentence in commands.items()])
