"""The gallery: reports as their commands write them, drawn by every build from results that are kept in docs/gallery.

Nothing is compiled while pages are made; `make gallery` makes the results anew.
"""

from __future__ import annotations

import functools
import gzip
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from systolic import CheckReport, Explanation
from systolic.report import explanation_page

KEPT = Path(__file__).parents[1] / "gallery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One of the gallery.

    Attributes:
      name: of its file and of its page.
      words: what there is to see in it, in Markdown.
      command: that made it, in a checkout, without `--json`.
    """

    name: str
    title: str
    words: str
    command: str

    @property
    def file(self) -> Path:
        """Where its result is kept: what `--json` writes, compressed."""
        return KEPT / f"{self.name}.json.gz"


_SQUARES = '--arg "bf16[4096,4096]" --arg "bf16[4096,4096]"'
_HEADS = " ".join(['--arg "bf16[1,4,2048,128]"'] * 3)

REPORTS = (
    Report(
        name="small_tiles",
        title="A product in small tiles",
        words="Each step of its grid multiplies so little that what a step costs by itself is most of the time. The "
        "findings have larger tiles, with the time that each would take.",
        command=f"systolic explain examples/slow_products.py:product {_SQUARES} --chip v6e --tries 4",
    ),
    Report(
        name="attention",
        title="JAX's flash attention",
        words="A kernel that somebody else wrote, with the blocks that it takes by default, and what other blocks do.",
        command=f"systolic explain examples/products.py:attention {_HEADS} --chip v6e --tries 2",
    ),
    Report(
        name="slice",
        title="A sharded product on eight chips",
        words="Which of the collectives are hidden behind arithmetic, which are not, and which links they take.",
        command="systolic explain jax.numpy:matmul --chip v6e --topology 2x4 --mesh data=2,model=4 "
        '--arg "bf16[8192,8192]@data,model" --arg "bf16[8192,28672]@-,model" --tries 0',
    ),
    Report(
        name="check",
        title="A product that drops the end of its sums",
        words="What `check` says of it, as a notebook shows it.",
        command='systolic check examples/planted_faults.py:dropped_tail --arg "bf16[2048,2100]" --arg "bf16[2100,1024]"'
        " --chip v6e --reference examples/planted_faults.py:reference",
    ),
)


def is_page(report: Report) -> bool:
    """Whether it is a page of its own, rather than a few lines."""
    return shlex.split(report.command)[1] == "explain"


@functools.cache
def kept(name: str) -> dict[str, Any]:
    """The result of that name, as `--json` wrote it."""
    return json.loads(gzip.decompress((KEPT / f"{name}.json.gz").read_bytes()))


@functools.cache
def explanation(name: str) -> Explanation:
    """The explanation of that name."""
    return Explanation.from_json(json.dumps(kept(name)["rows"][0]))


def report_pages() -> dict[str, str]:
    """File name → HTML, of the reports that are pages of their own."""
    return {f"{report.name}.html": explanation_page(explanation(report.name)) for report in REPORTS if is_page(report)}


def gallery_page() -> str:
    """The page that shows them, in Markdown; it lies in docs/generated, and reports in reports/ of the site."""
    parts = [
        "# Gallery",
        "Reports as `systolic` writes them, made with this version from results that are kept. Each is one file that "
        "needs no network.",
    ]
    for report in REPORTS:
        versions = ", ".join(f"{name} {version}" for name, version in kept(report.name)["versions"].items() if version)
        parts += [f"## {report.title}", report.words, _shown(report), f"With {versions}, by", f"    {report.command}"]
    return "\n\n".join(parts) + "\n"


def _shown(report: Report) -> str:
    if is_page(report):
        link = f"../reports/{report.name}.html"
        inside = (
            f'<iframe class="report" src="{link}" title="{report.title}" loading="lazy"></iframe>\n'
            f'<p><a href="{link}">The whole report</a></p>'
        )
        return f"```{{raw}} html\n{inside}\n```"
    found = CheckReport.from_json(json.dumps(kept(report.name)["rows"][0]))
    return f'```{{raw}} html\n<div class="shown">{found._repr_html_()}</div>\n```'
