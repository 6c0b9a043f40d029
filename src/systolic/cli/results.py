"""Read files that an earlier command wrote by `--json`, and reject other kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from systolic.cli.output import RESULT_SCHEMA
from systolic.support.call_errors import WrongCallError
from systolic.support.untrusted import read_json_file, shown

_MAX_KEYS = 5


class WrongFileError(WrongCallError, ValueError):
    """A file that is not what a command reads."""


def read_document(path: Path, expected: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
      path: the file.
      expected: the kind of file, as the end of "this takes …".

    Raises:
      WrongFileError: it cannot be read, is not JSON, is not an object, or another version made it.
    """
    document = read_json_file(path, WrongFileError, expected=expected)
    if not isinstance(document, dict):
        raise wrong_kind(path, document, expected)
    schema = document.get("schema", RESULT_SCHEMA)
    if type(schema) is not int or schema != RESULT_SCHEMA:
        raise WrongFileError(
            f"{path} was made by another version of systolic (schema {shown(schema)}, here {RESULT_SCHEMA}): rerun it"
        )
    return document


def wrong_kind(path: Path, document: Any, expected: str) -> WrongFileError:
    """Return the error of a JSON file of another kind than `expected`."""
    return WrongFileError(f"{path} is {_described(document)}; this takes {expected}")


def _described(document: Any) -> str:
    if not isinstance(document, dict):
        return {list: "a JSON list", str: "a JSON string", type(None): "JSON's null"}.get(
            type(document), "a JSON number"
        )
    command = document.get("command")
    if isinstance(command, str) and "rows" in document:
        return f"the result of `systolic {command[:40]}`"
    if "constants" in document and "chip" in document:
        return "a file of constants, which `systolic calibrate --out` writes"
    if "traceEvents" in document:
        return "a timeline, which `systolic simulate --trace` writes"
    keys = ", ".join(str(key)[:20] for key in list(document)[:_MAX_KEYS])
    return f"a JSON object that no command wrote, with {keys or 'nothing in it'}"
