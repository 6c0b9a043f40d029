"""Keep the numbers that pages quote equal to the data that they come from.

    python docs/_ext/quoted_numbers.py [BENCH.json ...]       # or make quotes

Files are results of `systolic bench --json`; their rows are kept in docs/numbers/bench.json. Then every quotation is
rewritten in its page. A build of the pages renews quotations too, without writing them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_numbers import (
    NUMBERS,
    few_rows_table,
    keep,
    percent_of_limit,
    put,
    ratio_table,
    readme_ratios,
    sharded_table,
)
from gallery import explanation
from model_numbers import model_table, readme_loss
from step_numbers import step_tables

from systolic.accuracy.kind_errors import shipped_kind_errors

ROOT = Path(__file__).parents[2]

Renewer = Callable[[str], str]


def renewed(path: Path, text: str) -> str:
    """Return the text of a page with its quotations renewed; pages without one return as they are."""
    for renewer in RENEWERS.get(path.relative_to(ROOT).as_posix(), ()):
        text = renewer(text)
    return text


def trust_sentences(text: str) -> str:
    """Renew the README's paragraph on trust, from the page on trust and the errors by kind."""
    trust = (ROOT / "docs" / "trust.md").read_text("utf-8")
    medians = dict(re.findall(r"^\| (v\w+), all \| .* \| ([\d.]+) % \| [\d.]+ % \| [\d.]+ % \|", trust, re.MULTILINE))
    worst = max(float(error) for error in re.findall(r"^\| v[\w@]+, all .* \| ([\d.]+) % \| [-+]", trust, re.MULTILINE))
    in_view, counted = re.findall(r"(\d+) of the (\d+) counted rows", trust)[0]
    chips = ", ".join(f"{medians[chip]} % on {chip}" for chip in ("v5e", "v5p", "v6e"))
    paragraph = (
        f"How far can you trust a time? Against {counted} published times of real TPUs, mostly of matrix products, the "
        f"median error is {chips} and {medians['v7x']} % on v7x. Constants of the model were chosen with {in_view} of "
        f"these times in view. For operations that were held out, the medians are {_held_out('all Pallas kernels')} % "
        f"for Pallas kernels and {_held_out('all programs of XLA')} % for programs of XLA, by chip. The worst error is "
        f"{worst:.0f} %. [Every row](docs/trust.md)."
    )
    return put(r"^How far can you trust a time\?(?:.|\n)*?(?=\n\n)", textwrap.fill(paragraph, 118), text)


def _held_out(kind: str) -> str:
    medians = [
        row.median_percent
        for row in shipped_kind_errors().kinds
        if row.kind == kind and not row.in_view and row.median_percent is not None
    ]
    return f"{min(medians):.0f} to {max(medians):.0f}"


def plan_sample(text: str) -> str:
    """Renew the output of `systolic plan`, which is arithmetic: the command runs."""
    [command] = re.findall(r"^    \$ systolic (plan .*)$", text, re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        # An empty store: `plan` prefers what `tune` found on this machine.
        environment = {**os.environ, "SYSTOLIC_STORE": str(Path(folder) / "trials.sqlite"), "COLUMNS": "300"}
        done = subprocess.run(
            [sys.executable, "-m", "systolic", *command.split()],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=environment,
        )
    sample = textwrap.indent(done.stdout.strip("\n"), "    ")
    return put(r"^    [\d ×]+\(m k n\)(?:.|\n)*?(?=\n\n- \*\*kernel)", sample, text)


def sentence(words: str, value: Callable[[str], str]) -> Renewer:
    """Return what renews the numbers of a sentence, which may be wrapped anywhere.

    Args:
      words: the sentence, with names in braces in place of numbers.
      value: returns the number of a name.
    """

    def renew(text: str) -> str:
        parts = re.split(r"\{([^}]+)\}", words)
        between = ["(" + r"\s+".join(map(re.escape, re.split(r"\s+", part))) + ")" for part in parts[::2]]
        [match] = re.finditer(r"[\d.,]+?".join(between), text)
        numbers = [*map(value, parts[1::2]), ""]
        changed = "".join(part for pair in zip(match.groups(), numbers, strict=True) for part in pair)
        return text[: match.start()] + changed + text[match.end() :]

    return renew


def _numbers(file: str) -> list[dict[str, Any]]:
    return json.loads((NUMBERS / file).read_text("utf-8"))["rows"]


def rung_us(name: str) -> str:
    """Return the simulated time of a rung in bfloat16: "v6 v5e 4096"."""
    rung, chip, size = name.split()
    keys = (rung, chip, int(size), "bfloat16")
    rows = _numbers("ladder.json")
    [time_us] = [row["time_us"] for row in rows if (row["rung"], row["chip"], row["m"], row["dtype"]) == keys]
    return f"{time_us:.{0 if time_us >= 100 else 1}f}"


def lesson_ratio(name: str) -> str:
    """Return the ratio of the times of two parts of a lesson: "unpacking: bfloat16 / int8: v5e"."""
    lesson, parts, chip = name.split(": ")
    rows = [row for row in _numbers("lessons.json") if (row["lesson"], row.get("chip")) == (lesson, chip)]
    times = {row["part"]: row["simulated_us"] for row in rows}
    above, below = parts.split(" / ")
    return f"{times[above] / times[below]:.2f}"


def explained(report: str) -> Renewer:
    """Return what renews the first line that `systolic explain` prints about the kernel of a report of the gallery."""

    def renew(text: str) -> str:
        verdict = explanation(report).verdict
        [indent] = re.findall(r"^( *)simulated [\d,.]+ µs .* on (?:v6e|\d+ devices of)", text, re.MULTILINE)
        lines = textwrap.fill(verdict, 117, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        return put(r"^ *simulated [\d,.]+ µs (?:.|\n)*?(?=\n(?:```|\n))", lines, text)

    return renew


def report_value(name: str) -> str:
    """Return a number of a report of the gallery: "small_tiles: this kernel: µs", or ": ±" or ": saves" in percent."""
    report, label, unit = name.split(": ")
    programs = {program.label: program for program in explanation(report).programs}
    times = {known: program.time_us or 0.0 for known, program in programs.items()}
    if unit == "µs":
        return f"{times[label]:,.1f}"
    if unit == "±":
        run = programs[label].run
        assert run is not None
        return run.error.cell.removesuffix(" %")
    return f"{100 * (1 - times[label] / times['this kernel']):.0f}"


def tuned(name: str) -> str:
    """Return the time of the winner or of the default blocks of tuned flash attention, or the winner's "block".

    The page has the command; its `--json` is kept as docs/numbers/tuned_attention.json.
    """
    [row] = _numbers("tuned_attention.json")
    if name == "block":
        [size] = set(row["winner"]["keywords"].values())
        return size
    return f"{row[name]['time_us']:.{1 if name == 'winner' else 0}f}"


RENEWERS: dict[str, tuple[Renewer, ...]] = {
    "README.md": (trust_sentences, readme_ratios, readme_loss, explained("blocks")),
    "docs/explain.md": (explained("blocks"),),
    "docs/slices.md": (explained("slice"),),
    "docs/matmul.md": (plan_sample,),
    "docs/results/matmul.md": (
        ratio_table,
        sentence(
            "4096³ on v6e reaches {4096³: v6e: ours} % of the limit; the goal is 92 %.** XLA with 64 MiB of VMEM"
            " reaches {4096³: v6e: xla} %",
            percent_of_limit,
        ),
    ),
    "docs/results/llama3_8b.md": (model_table,),
    "docs/results/slices.md": (sharded_table,),
    "docs/results/quantized.md": (few_rows_table,),
    "docs/results/steps.md": (step_tables,),
    "docs/tune_function.md": (
        sentence("With blocks of {block} it takes {winner} µs; with its defaults of 128, {default} (both", tuned),
    ),
    "docs/first_kernel.md": (
        sentence(
            "product: simulated {small_tiles: this kernel: µs} µs ± {small_tiles: this kernel: ±} %, 4,",
            report_value,
        ),
        sentence(
            "`± {small_tiles: this kernel: ±} %` means that nine of ten published times of similar programs lie within"
            " {small_tiles: this kernel: ±} %",
            report_value,
        ),
        sentence(
            "simulated {small_tiles: this kernel: µs} µs ± {small_tiles: this kernel: ±} % on v6e: 6% of the",
            report_value,
        ),
        *(
            sentence(f"{why} {{small_tiles: {label}: µs}} {{small_tiles: {label}: saves}}% simulated", report_value)
            for why, label in (
                ("64 steps and 302.0 MB, in pla…", "tile_m=1024 tile_k=1024 tile_n=1024"),
                ("128 steps and 302.0 MB, in pl…", "tile_m=1024 tile_k=512 tile_n=1024"),
                ("256 steps and 302.0 MB, in pl…", "tile_m=1024 tile_n=1024"),
                ("VMEM in its place it computes lhs @ rhs, which …", "XLA with 64 MiB of scoped VMEM"),
                ("matmul in its place it computes lhs @ rhs, which …", "systolic.matmul"),
            )
        ),
    ),
    "docs/explanation/quantized_kernel.md": (
        sentence(
            "int8 is {unpacking: bfloat16 / int8: v5e} · {unpacking: bfloat16 / int8: v6e} ·"
            " {unpacking: bfloat16 / int8: v7x} × as fast as bfloat16 on v5e · v6e · v7x, and int4"
            " {unpacking: bfloat16 / int4: v5e} · {unpacking: bfloat16 / int4: v6e} ·"
            " {unpacking: bfloat16 / int4: v7x} ×.",
            lesson_ratio,
        ),
        sentence(
            "scales sums of blocks {unpacking: int4 in blocks, scaled weights / int4 in blocks, scaled sums: v5e} × as",
            lesson_ratio,
        ),
    ),
    "src/systolic/lessons/ladder/v6_subtiles.py": (
        sentence(
            "4096³ takes {v6 v6e 4096} µs instead of {v5 v6e 4096} on v6e, and {v6 v5e 4096} instead of {v5 v5e 4096}"
            " on v5e; but 1024³ takes {v6 v6e 1024} instead of {v5 v6e 1024} on v6e",
            rung_us,
        ),
    ),
    "src/systolic/lessons/ladder/v7_three_buffers.py": (
        sentence(
            "4096³ in bfloat16 takes {v7 v6e 4096} µs instead of v6's {v6 v6e 4096} on v6e (simulated), but"
            " {v7 v5e 4096} instead of {v6 v5e 4096} on v5e",
            rung_us,
        ),
    ),
    "src/systolic/lessons/ladder/v8_own_copies.py": (
        sentence(
            "4096³ in bfloat16, simulated, {v8 v5e 4096} µs instead of v7's {v7 v5e 4096} on v5e, and {v8 v6e 4096}"
            " instead of {v7 v6e 4096} on v6e",
            rung_us,
        ),
    ),
}


if __name__ == "__main__":
    keep(Path(file) for file in sys.argv[1:])
    for name in RENEWERS:
        page = ROOT / name
        page.write_text(renewed(page, page.read_text("utf-8")), "utf-8")
