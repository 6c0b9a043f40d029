"""Keep results of `systolic bench` that pages quote, and write the tables of these pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

NUMBERS = Path(__file__).parents[1] / "numbers"
BENCH = NUMBERS / "bench.json"

Row = Mapping[str, Any]

_RATIO_GROUPS = ("square", "prefill", "decode", "fused", "edges")
# Spelled as in docs/results/quantized.md → as in names of the suite.
_WEIGHTS = {
    "int4, blocks of 128": "int4/128",
    "int8, blocks of 128": "int8/128",
    "int4": "int4",
    "float8_e4m3fn": "e4m3",
    "fp4": "fp4",
}
_FEW_ROWS = " llama3-8b gate 16"  # after the format, in a name of the suite
_README_ROWS = {
    "squares, 512 to 16384": "square",
    "prefill of Llama 3, DeepSeek-V3, Gemma 2": "prefill",
    "decode of the same": "decode",
}


class NotQuotedError(LookupError):
    """A page has lost a quotation: mend the page, or remove the renewer."""


def put(pattern: str, new: str, text: str) -> str:
    """Put `new` in the place of the only match; the dot of a pattern does not match the end of a line.

    Raises:
      NotQuotedError: there is no match, or there are several.
    """
    matches = list(re.finditer(pattern, text, re.MULTILINE))
    if len(matches) != 1:
        raise NotQuotedError(f"{len(matches)} places match {pattern!r}")
    return text[: matches[0].start()] + new + text[matches[0].end() :]


def ratio_table(text: str) -> str:
    """Renew the table of geometric means by suite and chip."""
    for mean in _stored()["means"]:
        star = " *" if mean["is_older"] else ""
        line = (
            f"| {mean['group']}{star} | {mean['chip']} | {mean['rows']} | {mean['ratio']:.3f} | "
            f"{mean['ratio_with_prefetch']:.3f} | {mean['worst_ratio']:.2f}: {mean['worst_case']} |"
        )
        text = put(rf"^\| {mean['group']}(?: \*)? \| {mean['chip']} \| .*$", line, text)
    return text


def readme_ratios(text: str) -> str:
    """Renew the rows of the README's table that are geometric means."""
    means = {(mean["group"], mean["chip"]): mean for mean in _stored()["means"]}
    for opening, group in _README_ROWS.items():
        shown = [means[group, chip] for chip in ("v5e", "v6e", "v7x")]
        cells = " | ".join(f"{mean['ratio']:.2f}{' *' if mean['is_older'] else ''}" for mean in shown)
        text = put(rf"(?<=^\| {re.escape(opening)} \| ).*(?= \| `systolic)", cells, text)
    return text


def percent_of_limit(name: str) -> str:
    """Return the share of a time that the chip's limits are, in percent: "4096³: v6e: ours"."""
    case, chip, racer = name.split(": ")
    [row] = [row for row in _stored()["rows"] if (row["case"], row["chip"]) == (case, chip)]
    return f"{100 * max(row['hbm_us'], row['mxu_us']) / row[f'{racer}_us']:.0f}"


def few_rows_table(text: str) -> str:
    """Renew the table of sixteen rows times quantized weights."""
    rows = _stored()["rows"]
    for title, weight in _WEIGHTS.items():
        cells = []
        for chip in ("v5e", "v6e", "v7x"):
            [row] = [row for row in rows if (row["case"], row["chip"]) == (weight + _FEW_ROWS, chip)]
            cells.append(", ".join(f"{row[key]:.1f}" for key in ("ours_us", "xla_us", "hbm_us")))
        text = put(rf"^\| {re.escape(title)} \| .*$", f"| {title} | {' | '.join(cells)} |", text)
    return text


def sharded_table(text: str) -> str:
    """Renew the table of products over a slice, with the exposed communication of each."""
    for row in _stored()["rows"]:
        product, _, tokens = row["case"].removeprefix("llama3-8b ").rpartition(" ")
        if "ours_exposed_us" in row:
            cells = [row[key] for key in ("ours_us", "ours_exposed_us", "xla_us", "xla_exposed_us")]
            times = " | ".join(f"{cell:.1f}" if cell else "0" for cell in cells)
            ratios = f"{row['xla_us'] / row['ours_us']:.2f} | {row['ratio_with_prefetch']:.2f}"
            line = f"| {product}, {tokens} | {times} | {ratios} |"
            text = put(rf"^\| {product}, {tokens} \| .*$", line, text)
    return text


def keep(files: Iterable[Path]) -> None:
    """Put the rows of results of `systolic bench --json` into docs/numbers/bench.json."""
    stored = _stored()
    for file in files:
        merge(stored, json.loads(file.read_text("utf-8")))
    BENCH.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")


def merge(stored: dict[str, Any], result: Mapping[str, Any]) -> None:
    """Put the rows of a result of `systolic bench --json` in place of older ones."""
    bfloat16 = [row for row in result["rows"] if row["dtype"] == "bfloat16" and row["ratio"] is not None]
    for mean in _means(bfloat16):
        _replace(stored["means"], mean, ("group", "chip"))
    for row in filter(_is_quoted, result["rows"]):
        kept = {
            "case": row["case"],
            "chip": row["chip"],
            "ours_us": row["ours_us"],
            "xla_us": row["xla_repeated_us"],
            "hbm_us": row["model_hbm_us"],
            "mxu_us": row["model_mxu_us"],
        }
        if row["suite"] == "sharded":
            kept |= {key: row[key] for key in ("ours_exposed_us", "xla_exposed_us", "ratio_with_prefetch")}
        _replace(stored["rows"], kept, ("case", "chip"))


def _is_quoted(row: Row) -> bool:
    is_square = row["group"] == "square" and row["dtype"] == "bfloat16"
    is_sharded = row["suite"] == "sharded" and " by " in row["case"]
    return is_square or is_sharded or row["case"].removesuffix(_FEW_ROWS) in _WEIGHTS.values()


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
