"""Read a lesson's docstring and the place where its code begins.

Files are read, not imported, so that a lesson that this machine cannot run has a page too.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A module of a lesson.

    Attributes:
      path: of the file.
      title: the docstring's first line, without its full stop.
      prose: the rest of the docstring, as Markdown.
      first_line: of the code below the docstring.
    """

    path: Path
    title: str
    prose: str
    first_line: int


def path_of(module: str) -> Path:
    """Return the file of a module of this repository, or the `__init__.py` of a package."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def read(module: str) -> SourceFile:
    """Return the module's docstring and the place of its code.

    Raises:
      ValueError: it has no docstring to make a page from.
    """
    path = path_of(module)
    tree = ast.parse(path.read_text("utf-8"))
    docstring = ast.get_docstring(tree)
    if docstring is None:
        raise ValueError(f"{path} has no docstring")
    title, _, rest = docstring.partition("\n")
    return SourceFile(
        path=path,
        title=title.rstrip("."),
        prose=_as_markdown(rest),
        first_line=(tree.body[0].end_lineno or 0) + 2,  # an empty line follows the docstring
    )


def _as_markdown(docstring: str) -> str:
    """Fence indented blocks, which hold formulas; leave paragraphs as they are."""
    blocks = textwrap.dedent(docstring).strip("\n").split("\n\n")
    return "\n\n".join(_fenced(block) if block.startswith("    ") else block for block in blocks)


def _fenced(block: str) -> str:
    return f"```text\n{textwrap.dedent(block)}\n```"
