"""Charts as PNG files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from systolic.support.whole_file import whole_file


def save_png(chart: Any, path: Path) -> Path:
    """Write an Altair chart as a PNG to `path`, whole or not at all; its folder is made. Returns `path`.

    Raises:
      OSError: the file cannot be written.
    """
    from PIL import Image

    # The drawing library compresses a chart poorly, to up to five times the bytes.
    drawn, small = BytesIO(), BytesIO()
    with_larger_text(chart).save(drawn, format="png", scale_factor=2)
    Image.open(drawn).save(small, format="PNG", optimize=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_bytes(small.getvalue())
    return path


def with_larger_text(chart: Any) -> Any:
    """Return the chart with text that can still be read on a phone, which shows it at two thirds of its size."""
    sizes = {"labelFontSize": 13, "titleFontSize": 13}
    chart = chart.configure_axis(**sizes).configure_legend(**sizes).configure_header(**sizes)
    return chart.configure_title(fontSize=14).configure_text(fontSize=12)
