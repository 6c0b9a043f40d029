"""Write the table of Llama-3 8B's products and loss from one run of `systolic bench` over four suites and three chips.

The page has the command; its `--json` is kept as docs/numbers/llama3_8b.json.
"""

from __future__ import annotations

import json
from typing import Any

from bench_numbers import NUMBERS, put

_CHIPS = ("v5e", "v6e", "v7x")
_README_CASE = "llama3-8b keeping logits 4096"


def model_table(text: str) -> str:
    """Renew all rows of the table: time, share of the model's limit, and XLA's time over ours."""
    rows = _rows()
    suites = {row["case"]: row["suite"] for row in rows}
    by_place = {(row["case"], row["chip"]): row for row in rows}
    lines = [
        f"| {'loss ' if suite == 'loss' else ''}{case.replace('llama3-8b ', '')} | "
        + " | ".join(_cell(by_place[case, chip]) for chip in _CHIPS)
        + " |\n"
        for case, suite in suites.items()
    ]
    return put(r"(?<=^\|---\|---\|---\|---\|\n)(?:\|.*\n)+", "".join(lines), text)


def readme_loss(text: str) -> str:
    """Renew the README's row of the loss that keeps its logits."""
    ratios = {row["chip"]: row["ratio"] for row in _rows() if row["case"] == _README_CASE}
    cells = " | ".join(f"{ratios[chip]:.2f}" for chip in _CHIPS)
    return put(
        r"(?<=^\| softmax loss of Llama-3 8B, both gradients, logits kept, 4,096 tokens \| ).*(?= \| `s)", cells, text
    )


def _rows() -> list[dict[str, Any]]:
    return json.loads((NUMBERS / "llama3_8b.json").read_text("utf-8"))["rows"]


def _cell(row: dict[str, float | None]) -> str:
    time_us, share, ratio = row["ours_us"], row["share_of_model"], row["ratio"]
    if time_us is None:
        return "–"
    digits = 0 if time_us >= 1000 else 1
    xla = "" if ratio is None else f", {ratio:.2f} ×"
    return f"{time_us:,.{digits}f} µs, {share or 0:.2f}{xla}"
