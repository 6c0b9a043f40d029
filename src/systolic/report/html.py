"""Write an HTML file that contains everything that it needs."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from systolic.report import charts
from systolic.report.written import mib, percent, round_mib, us
from systolic.support.extras import check_drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot of the page."""

    name: str  # the name of its HTML elements
    title: str  # the caption
    words: str  # the text for readers who do not see it
    spec: charts.Spec
    key: tuple[charts.KeyItem, ...] = ()
    zooms: bool = False


def render(template: str, drawn: Iterable[Plot], *, command: str, title: str, **values: Any) -> str:
    """Write a page: HTML of about a megabyte, mostly the library that draws the plots.

    It loads nothing and sends nothing: its Content-Security-Policy forbids it. Plots can be moved and zoomed; without
    JavaScript the tables remain.

    Args:
      template: a file of this folder that extends `shell.html.j2`.
      drawn: all plots that the page shows.
      command: the command that writes such pages.
      values: the template's values.

    Raises:
      DrawingMissing: a library that draws is not installed.
    """
    check_drawing()
    import jinja2

    folder = files(str(__package__))
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals.update(mib=mib, round_mib=round_mib, percent=percent, us=us)
    scripts = [_bundle(), folder.joinpath("page.js").read_text("utf-8")]
    return environment.get_template(template).render(
        **values,
        command=command,
        title=title,
        version=version("systolic"),
        specs={plot.name: plot.spec for plot in drawn},
        style=folder.joinpath("page.css").read_text("utf-8"),
        scripts=scripts,
        policy=_policy(scripts),
    )


@functools.cache
def _bundle() -> str:
    """Bundle Vega, Vega-Lite and Vega-Embed, which takes a second."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _policy(scripts: list[str]) -> str:
    """Let only the page's own scripts run, and nothing be fetched. Vega needs `unsafe-eval` for its expressions."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-eval' {hashes}"
