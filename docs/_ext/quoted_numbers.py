"""Keep the numbers that pages quote equal to the data that they come from.

    python docs/_ext/quoted_numbers.py [BENCH.json ...]       # or make quotes

Files are results of `systolic bench --json`; their rows are kept in docs/numbers/bench.json. Then every quotation is
written into its page anew. A build of the pages renews quotations too, without writing them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from systolic.accuracy.kind_errors import shipped_kind_errors

ROOT = Path(__file__).parents[2]
NUMBERS = ROOT / "docs" / "numbers"
BENCH = NUMBERS / "bench.json"

Renewer = Callable[[str], str]
Row = Mapping[str, Any]

_RATIO_GROUPS = ("square", "prefill", "decode", "fused", "edges")
# Spelled as in docs/results/quantized.md → the suite's groups.
_WEIGHTS = {
    "int4, blocks of 128": "decode int4/128",
    "int8, blocks of 128": "decode int8/128",
    "int4": "decode int4",
    "float8_e4m3fn": "decode e4m3",
    "fp4": "decode fp4",
}
_README_ROWS = {
    "squares, 512 to 16384": "square",
    "prefill of Llama 3, DeepSeek-V3, Gemma 2": "prefill",
    "decode of the same": "decode",
}


class NotQuotedError(LookupError):
    """A page has lost a quotation: mend the page, or remove the renewer."""


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
    return _put(r"^How far can you trust a time\?(?:.|\n)*?(?=\n\n)", textwrap.fill(paragraph, 118), text)


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
    return _put(r"^    [\d ×]+\(m k n\)(?:.|\n)*?(?=\n\n- \*\*kernel)", sample, text)


def ratio_table(text: str) -> str:
    """Renew the table of geometric means by suite and chip."""
    for mean in _stored()["means"]:
        star = " *" if mean["is_older"] else ""
        line = (
            f"| {mean['group']}{star} | {mean['chip']} | {mean['rows']} | {mean['ratio']:.3f} | "
            f"{mean['ratio_with_prefetch']:.3f} | {mean['worst_ratio']:.2f}: {mean['worst_case']} |"
        )
        text = _put(rf"^\| {mean['group']}(?: \*)? \| {mean['chip']} \| .*$", line, text)
    return text


def readme_ratios(text: str) -> str:
    """Renew the rows of the README's table that are geometric means."""
    means = {(mean["group"], mean["chip"]): mean for mean in _stored()["means"]}
    for opening, group in _README_ROWS.items():
        shown = [means[group, chip] for chip in ("v5e", "v6e", "v7x")]
        cells = " | ".join(f"{mean['ratio']:.2f}{' *' if mean['is_older'] else ''}" for mean in shown)
        text = _put(rf"(?<=^\| {re.escape(opening)} \| ).*(?= \| `systolic)", cells, text)
    return text


def few_rows_table(text: str) -> str:
    """Renew the table of sixteen rows times quantized weights."""
    rows = _stored()["rows"]
    for title, group in _WEIGHTS.items():
        cells = []
        for chip in ("v5e", "v6e", "v7x"):
            [row] = [row for row in rows if (row["group"], row["chip"]) == (group, chip)]
            cells.append(", ".join(f"{row[key]:.1f}" for key in ("ours_us", "xla_us", "hbm_us")))
        text = _put(rf"^\| {re.escape(title)} \| .*$", f"| {title} | {' | '.join(cells)} |", text)
    return text


def sentence(words: str, value: Callable[[str], str]) -> Renewer:
    """Return what renews the numbers of a sentence, which may be wrapped anywhere.

    Args:
      words: the sentence, with names in braces in place of numbers.
      value: the number that a name stands for.
    """

    def renew(text: str) -> str:
        parts = re.split(r"\{([^}]+)\}", words)
        between = ["(" + r"\s+".join(map(re.escape, re.split(r"\s+", part))) + ")" for part in parts[::2]]
        [match] = re.finditer(r"[\d.,]+?".join(between), text)
        numbers = [*map(value, parts[1::2]), ""]
        changed = "".join(part for pair in zip(match.groups(), numbers, strict=True) for part in pair)
        return text[: match.start()] + changed + text[match.end() :]

    return renew


def _numbers(file: str) -> list[Row]:
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


RENEWERS: dict[str, tuple[Renewer, ...]] = {
    "README.md": (trust_sentences, readme_ratios),
    "docs/matmul.md": (plan_sample,),
    "docs/results/matmul.md": (ratio_table,),
    "docs/results/quantized.md": (few_rows_table,),
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


def merge(stored: dict[str, Any], result: Mapping[str, Any]) -> None:
    """Put the rows of a result of `systolic bench --json` in place of older ones."""
    bfloat16 = [row for row in result["rows"] if row["dtype"] == "bfloat16" and row["ratio"] is not None]
    for mean in _means(bfloat16):
        _replace(stored["means"], mean, ("group", "chip"))
    for row in result["rows"]:
        if row["suite"] == "quantized" and row["m"] == 16:
            kept = {
                "group": row["group"],
                "case": row["case"],
                "chip": row["chip"],
                "ours_us": row["ours_us"],
                "xla_us": row["xla_repeated_us"],
                "hbm_us": row["model_hbm_us"],
            }
            _replace(stored["rows"], kept, ("group", "case", "chip"))


def _means(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for group, chip in dict.fromkeys((row["group"], row["chip"]) for row in rows):
        if group in _RATIO_GROUPS:
            compared = [row for row in rows if (row["group"], row["chip"]) == (group, chip)]
            worst = min(compared, key=lambda row: row["ratio"])
            yield {
                "group": group,
                "chip": chip,
                "rows": len(compared),
                "ratio": geometric_mean(row["ratio"] for row in compared),
                "ratio_with_prefetch": geometric_mean(row["ratio_with_prefetch"] for row in compared),
                "worst_ratio": worst["ratio"],
                "worst_case": worst["case"],
                "is_older": False,
            }


def _replace(rows: list[Any], new: Row, keys: Sequence[str]) -> None:
    """Put `new` in the place of the row with the same keys, or at the end."""
    for place, row in enumerate(rows):
        if all(row[key] == new[key] for key in keys):
            rows[place] = new
            return
    rows.append(new)


def _stored() -> dict[str, Any]:
    return json.loads(BENCH.read_text("utf-8"))


def _put(pattern: str, new: str, text: str) -> str:
    """Put `new` in the place of the only match; the dot of a pattern does not match the end of a line.

    Raises:
      NotQuotedError: there is no match, or there are several.
    """
    matches = list(re.finditer(pattern, text, re.MULTILINE))
    if len(matches) != 1:
        raise NotQuotedError(f"{len(matches)} places match {pattern!r}")
    return text[: matches[0].start()] + new + text[matches[0].end() :]


if __name__ == "__main__":
    stored = _stored()
    for file in sys.argv[1:]:
        merge(stored, json.loads(Path(file).read_text("utf-8")))
    BENCH.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")
    for name in RENEWERS:
        page = ROOT / name
        page.write_text(renewed(page, page.read_text("utf-8")), "utf-8")
