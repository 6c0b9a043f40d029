"""What a page takes from a lesson's source: its docstring, where the code begins, and which files belong to it.

Files are read, not imported: a page can be made of a lesson that this machine cannot run.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
LESSONS = "systolic.lessons"
# What every lesson is built from, and no lesson's own.
_SHARED = {f"{LESSONS}.lesson", f"{LESSONS}.showing"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One module of a lesson.

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
    """The file of a module of this repository, or the `__init__.py` of a package."""
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def read(module: str) -> SourceFile:
    """The module's docstring and code.

    Raises:
      ValueError: it has no docstring, of which its page would be made.
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


def modules_of(module: str, others: set[str]) -> list[str]:
    """The module, and those of the lessons' room that it imports and no other lesson is: its parts.

    Args:
      module: the lesson's, by its whole name.
      others: modules that have pages of their own.
    """
    path = path_of(module)
    found = [module]
    if path.name == "__init__.py":
        found += [f"{module}.{part.stem}" for part in sorted(path.parent.glob("*.py")) if part != path]
    for each in found:  # grows while it is gone through
        for imported in _imported(path_of(each)):
            mine = imported.startswith(f"{LESSONS}.") and not imported.startswith(f"{LESSONS}.ladder")
            if mine and path_of(imported).is_file() and imported not in {*found, *others, *_SHARED}:
                found.append(imported)
    return found


def _imported(path: Path) -> list[str]:
    tree = ast.parse(path.read_text("utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _as_markdown(docstring: str) -> str:
    """Paragraphs as they are; an indented block, which holds a formula, fenced."""
    blocks = textwrap.dedent(docstring).strip("\n").split("\n\n")
    return "\n\n".join(_fenced(block) if block.startswith("    ") else block for block in blocks)


def _fenced(block: str) -> str:
    return f"```text\n{textwrap.dedent(block)}\n```"
