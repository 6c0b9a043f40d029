"""What can be said of a store of trials without changing anything in it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from systolic.trials.store import store_file


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """A store as it is.

    Attributes:
      schema: version of its tables; None where there is no file, or it cannot be read.
      products: that trials are kept of.
      problem: why it cannot be used, in a line; "" where it can, or will be made when it is needed.
    """

    file: Path
    schema: int | None = None
    products: int = 0
    trials: int = 0
    size_bytes: int = 0
    problem: str = ""


def store_state(file: Path | None = None) -> StoreState:
    """Looks at the store in this file, or at the user's. A damaged one is left where it is."""
    file = file if file is not None else store_file()
    try:
        size_bytes = file.stat().st_size
    except FileNotFoundError:
        return StoreState(file=file)
    except OSError as error:
        return StoreState(file=file, problem=f"it cannot be read: {error.strerror}")
    if not size_bytes:
        return StoreState(file=file)
    writable = os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    # Readers of a journal that others write to share a file beside it, which nobody can make in such a folder.
    mode = "mode=ro" if writable else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            (products,) = connection.execute("SELECT count(*) FROM subjects").fetchone()
            (trials,) = connection.execute("SELECT count(*) FROM trials").fetchone()
    except sqlite3.Error as error:
        return StoreState(file=file, size_bytes=size_bytes, problem=f"it cannot be read as a store of trials: {error}")
    problem = f"it is damaged: {found}" if found != "ok" else "" if writable else "it cannot be written to"
    return StoreState(
        file=file, schema=schema, products=products, trials=trials, size_bytes=size_bytes, problem=problem
    )
