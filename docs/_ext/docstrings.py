"""Turn this project's docstrings into reStructuredText."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_BEFORE_NAPOLEON, _AFTER_NAPOLEON = 400, 600
_FOLLOWED_BY_A_LETTER = re.compile(r"(`[^`\n]+`)(?=\w)")
_RANGED = re.compile(r"~?(?:\w+\.)*Annotated\[(\w+), ~?(?:\w+\.)*Range\([^()]*\)\]")
_QUALIFIED = re.compile(r"~(?:\w+\.)+(?=\w)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    # Napoleon takes the text before a property's first colon for its type. Our types are in the annotations.
    properties: dict[str, list[str]] = {}

    def before(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        lines[:] = as_restructured_text(lines)
        if what == "property":
            properties[name] = list(lines)

    def after(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        if what == "property":
            lines[:] = properties.pop(name)

    app.connect("autodoc-process-docstring", before, priority=_BEFORE_NAPOLEON)
    app.connect("autodoc-process-docstring", after, priority=_AFTER_NAPOLEON)
    app.connect("autodoc-process-signature", _readable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def as_restructured_text(lines: list[str]) -> list[str]:
    """Mark indented blocks as code, and split `` `Type`s `` into code and a letter."""
    result: list[str] = []
    for number, line in enumerate(lines):
        above = [earlier_line for earlier_line in lines[:number] if earlier_line.strip()]
        begins = line.startswith("    ") and number > 0 and not lines[number - 1].strip()
        if begins and above and not above[-1].startswith(" "):
            result += ["::", ""]
        result.append(_FOLLOWED_BY_A_LETTER.sub(r"\1\\ ", line))
    return result


def _readable(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    if signature is None:
        return None
    signature = _RANGED.sub(r"\1", signature)  # a field's range is for reading it back
    # A default made by a factory is not valid Python, and Sphinx would show the whole signature unchanged.
    if "<factory>" not in signature:
        return signature, returns
    return _QUALIFIED.sub("", signature.replace("<factory>", "...")), returns
