"""Optional packages of some commands: whether they are installed, and the pip command in messages.

Messages name the packages themselves, as `pip install "distributed>=2024.8"`, and never `systolic[cluster]`: pip would
ask its index for systolic, which need not have come from there.
"""

from __future__ import annotations

import importlib.util
import platform
from typing import Literal

from systolic.support.call_errors import LackingError

Extra = Literal["tpu", "report", "cluster"]

# Their requirements, as in pyproject.toml, and the modules that tell whether an extra is installed.
REQUIREMENTS: dict[Extra, tuple[str, ...]] = {
    "tpu": ("jax[tpu]>=0.10.2",),
    "report": ("altair>=5.5", "jinja2>=3.1", "pillow>=11.0", "vl-convert-python>=1.7"),
    "cluster": ("distributed>=2024.8",),
}
_MODULES: dict[Extra, tuple[str, ...]] = {
    "tpu": ("libtpu",),
    "report": ("altair", "jinja2", "PIL", "vl_convert"),
    "cluster": ("distributed",),
}


class DrawingMissing(LackingError, ImportError):  # noqa: N818 -- said the way the user thinks of it
    """The libraries that draw plots and pages are not installed here."""

    def __init__(self) -> None:
        super().__init__(
            f"plots and pages need {' and '.join(missing('report'))}, not installed here: {install_command('report')}"
        )


def missing(extra: Extra) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [name for name in _MODULES[extra] if importlib.util.find_spec(name) is None]


def install_command(extra: Extra) -> str:
    """Return the command that installs an extra's packages, or why there is none."""
    if extra == "tpu" and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"it has wheels for Linux on x86-64 only, and this is {platform.system()} on {platform.machine()}"
    quoted = " ".join(f'"{requirement}"' for requirement in REQUIREMENTS[extra])
    return f"python -m pip install {quoted}"


def check_drawing() -> None:
    """Raise `DrawingMissing` if a library that draws plots and pages is not installed."""
    if missing("report"):
        raise DrawingMissing
