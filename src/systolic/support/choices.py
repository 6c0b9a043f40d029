"""The message about a name that is not one of the choices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from systolic.support.untrusted import shown


def unknown_name(subject: str, name: object, choices: Iterable[str], *, aliases: Iterable[str] = ()) -> str:
    """Return "chip 'v7' is unknown; did you mean v7x? choose from v4, v5e, v7x".

    Args:
      subject: the kind of name, such as "chip"; with "=" at its end the parameter that holds the name.
      name: from a user or a file; shortened and escaped if necessary.
      choices: the valid names.
      aliases: valid names that are suggested, but not listed.
    """
    names = list(choices)
    between = "" if subject.endswith("=") else " "
    suggestion = did_you_mean(str(name), [*names, *aliases])
    return f"{subject}{between}{shown(name)} is unknown; {suggestion}choose from {', '.join(names)}"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return "did you mean explain? ", or "" for a name that is similar to none of the choices."""
    similar = difflib.get_close_matches(name, list(choices), n=1)
    return f"did you mean {similar[0]}? " if similar else ""
