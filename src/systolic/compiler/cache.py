"""Compiled programs and refusals on disk, so that nothing is compiled twice. A damaged cache is a slow one, no more."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import diskcache
import platformdirs

from systolic.compiler.errors import CompilerRefusal
from systolic.compiler.program import CompiledProgram

CACHE_FOLDER_VARIABLE = "SYSTOLIC_CACHE_DIR"
CACHE_SIZE_LIMIT_BYTES = 4 * 2**30

# Level 1 packs a listing about eight to one at over 200 MB/s; higher levels gain little and take longer than they save.
_COMPRESSION_LEVEL = 1
_DAMAGED_ENTRY = (zlib.error, ValueError, KeyError, TypeError)


class CacheWarning(UserWarning):
    """The cache could not be read or written. The work goes on without it."""


def cache_folder() -> Path:
    """Where programs are kept: `$SYSTOLIC_CACHE_DIR` if set when this is called, else the user's cache folder."""
    chosen = os.environ.get(CACHE_FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("systolic")) / "programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCache:
    """A folder of compiled programs, shared by any number of processes. Picklable; holds nothing open between calls.

    Attributes:
        folder: where the entries are; None: `cache_folder()`, asked anew at each use.
        size_limit_bytes: compressed size past which the entries used longest ago go.
    """

    folder: Path | None = None
    size_limit_bytes: int = CACHE_SIZE_LIMIT_BYTES

    def get(self, key: str) -> CompiledProgram | CompilerRefusal | None:
        """What was kept under `key`, or None. Warns with `CacheWarning`, and gives None, where that cannot be read."""
        with self._guarded("read"), self._opened() as store:
            value = store.get(key)
            if value is not None:
                try:
                    return _decode(cast(bytes, value))
                except _DAMAGED_ENTRY as error:
                    store.delete(key)
                    warnings.warn(f"dropped a damaged cache entry ({error})", CacheWarning, stacklevel=2)
        return None

    def put(self, key: str, outcome: CompiledProgram | CompilerRefusal) -> None:
        """Keep `outcome` under `key`. Warns with `CacheWarning` where that fails."""
        with self._guarded("written"), self._opened() as store:
            store.set(key, _encode(outcome))

    @contextmanager
    def _opened(self) -> Iterator[diskcache.Cache]:
        folder = self.folder if self.folder is not None else cache_folder()
        try:
            store = self._open(folder)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, full or read-only: not damaged
                raise
            self._set_aside(folder, error)
            store = self._open(folder)
        try:
            yield store
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):
                self._set_aside(folder, error)
                return
            raise
        finally:
            store.close()

    def _open(self, folder: Path) -> diskcache.Cache:
        return _Store(str(folder), size_limit=self.size_limit_bytes, eviction_policy="least-recently-used", timeout=10)

    def _set_aside(self, folder: Path, error: Exception) -> None:
        # The whole folder moves, since without its index no value file in it can be found or counted again.
        aside = folder.with_name(f"{folder.name}.damaged-{time.time_ns()}")
        folder.rename(aside)
        warnings.warn(f"the program cache was damaged ({error}); moved it to {aside}", CacheWarning, stacklevel=2)

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            warnings.warn(f"the program cache could not be {what} ({error})", CacheWarning, stacklevel=3)


class _Store(diskcache.Cache):
    """diskcache's, except that a constructor that fails leaves no database open."""

    def __init__(self, directory: str, **settings: Any) -> None:
        try:
            super().__init__(directory, **settings)
        except BaseException:
            self.close()
            raise


def _encode(outcome: CompiledProgram | CompilerRefusal) -> bytes:
    if isinstance(outcome, CompiledProgram):
        record = {"program": asdict(outcome)}
    else:
        names = ("message", "kind", "requested_bytes", "available_bytes")
        record = {"refusal": {name: getattr(outcome, name) for name in names}}
    return zlib.compress(json.dumps(record).encode(), _COMPRESSION_LEVEL)


def _decode(value: bytes) -> CompiledProgram | CompilerRefusal:
    record = json.loads(zlib.decompress(value))
    if "program" in record:
        return replace(CompiledProgram(**record["program"]), from_cache=True)
    return CompilerRefusal(**record["refusal"])
