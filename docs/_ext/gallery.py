"""Make the gallery: reports as their commands write them, drawn by every build from the results in docs/gallery.

Nothing is compiled while pages are made; `make gallery` renews the results.
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

RESULTS = Path(__file__).parents[1] / "gallery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report of the gallery.

    Attributes:
      name: of its file and of its page.
      words: what it shows, in Markdown.
      command: made it in a checkout, without `--json`.
    """

    name: str
    title: str
    words: str
    command: str

    @property
    def file(self) -> Path:
        """The compressed output of `--json`."""
        return RESULTS / f"{self.name}.json.gz"


_SQUARES = '--arg "bf16[4096,4096]" --arg "bf16[4096,4096]"'
_HEADS = " ".join(['--arg "bf16[1,4,2048,128]"'] * 3)

REPORTS = (
    Report(
        name="small_tiles",
        title="A product in small tiles",
        words="Each step of its grid multiplies so little that most of the time is the overhead of a step. The "
        "findings list larger tiles, with the time that each would take.",
        command=f"systolic explain examples/slow_products.py:product {_SQUARES} --chip v6e --tries 4",
    ),
    Report(
        name="blocks",
        title="A product that HBM limits",
        words="Its blocks are large enough, but one operand is fetched eight times over.",
        command=f"systolic explain examples/products.py:v5 {_SQUARES} --chip v6e",
    ),
    Report(
        name="attention",
        title="JAX's flash attention",
        words="A public kernel in blocks of 512, and its times in other blocks.",
        command=f"systolic explain examples/products.py:attention {_HEADS} --chip v6e --tries 2",
    ),
    Report(
        name="slice",
        title="A sharded product on eight chips",
        words="Which collectives are hidden by arithmetic, which are exposed, which links they use, and what another "
        "order of the devices would save.",
        command="systolic explain jax.numpy:matmul --chip v6e --topology 2x4 --mesh model=8 "
        '--arg "bf16[2048,8192]@model,-" --arg "bf16[8192,28672]@-,model" --try-mesh --tries 3',
    ),
    Report(
        name="check",
        title="A product that drops the end of its sums",
        words="The report of `check`, as a notebook shows it.",
        command='systolic check examples/planted_faults.py:dropped_tail --arg "bf16[2048,2100]" --arg "bf16[2100,1024]"'
        " --chip v6e --reference examples/planted_faults.py:reference",
    ),
)


def is_page(report: Report) -> bool:
    """True if the report is a page of its own."""
    return shlex.split(report.command)[1] == "explain"


@functools.cache
def stored_result(name: str) -> dict[str, Any]:
    """Return a result as `--json` wrote it."""
    return json.loads(gzip.decompress((RESULTS / f"{name}.json.gz").read_bytes()))


@functools.cache
def explanation(name: str) -> Explanation:
    """Return the explanation in a result."""
    return Explanation.from_json(json.dumps(stored_result(name)["rows"][0]))


def report_pages() -> dict[str, str]:
    """Return file name → HTML, for the reports that are pages of their own."""
    return {f"{report.name}.html": explanation_page(explanation(report.name)) for report in REPORTS if is_page(report)}


def gallery_page() -> str:
    """Return the page that shows all reports, in Markdown, for docs/generated; reports lie in reports/ of the site."""
    parts = [
        "# Gallery",
        "Reports as `systolic` writes them, drawn by this version from stored results. Each is one file that needs no "
        "network.",
    ]
    for report in REPORTS:
        versions = stored_result(report.name)["versions"]
        made_with = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        parts += [f"## {report.title}", report.words, _shown(report)]
        parts += [f"Made with {made_with}, by", f"    {report.command}"]
    return "\n\n".join(parts) + "\n"


def _shown(report: Report) -> str:
    if is_page(report):
        link = f"../reports/{report.name}.html"
        inside = (
            f'<iframe class="report" src="{link}" title="{report.title}" loading="lazy"></iframe>\n'
            f'<p><a href="{link}">Open the whole report</a></p>'
        )
        return f"```{{raw}} html\n{inside}\n```"
    check_report = CheckReport.from_json(json.dumps(stored_result(report.name)["rows"][0]))
    return f'```{{raw}} html\n<div class="shown">{check_report._repr_html_()}</div>\n```'
