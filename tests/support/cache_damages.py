"""Damages a program cache in every way that a broken disk or a stranger could: for the tests of the cache."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from systolic.compiler import CompiledProgram, CompilerRefusal, ProgramCache

PROGRAM = CompiledProgram(
    listings={"TLP": "bundles é" * 2_000, "mm.1": "more"},
    utilization={"TLP": "table"},
    sparse_listings={"gather": "scs"},
    vmem_report="{}",
    top_level_hlo="HloModule m",
    generated_code_bytes=1,
    temp_bytes=2,
    argument_bytes=3,
    output_bytes=4,
    cost_flops=5.0,
    cost_bytes_accessed=None,
    chip="v5e",
    jax_version="1",
    libtpu_version="2",
    compile_s=0.5,
    key="k",
    from_cache=False,
    constants=bytes(range(256)),
)
REFUSAL = CompilerRefusal("text\nmore", kind="vmem", requested_bytes=7, available_bytes=5)
FILE = "systolic-programs-1.sqlite"


def kept() -> dict[str, CompiledProgram | CompilerRefusal]:
    """Contents of the cache before it is damaged: entries within a page, over several pages, and refusals."""
    texts = random.Random(0)
    found: dict[str, CompiledProgram | CompilerRefusal] = {"refusal": REFUSAL, "k": PROGRAM}
    for number in range(12):
        hlo = texts.randbytes(200 * 2**number % 30_000).decode("latin-1")
        key = hashlib.sha256(bytes([number])).hexdigest()
        found[key] = replace(PROGRAM, top_level_hlo=hlo, key=key)
    return found


def make_pristine(folder: Path) -> None:
    """A cache of all that `kept` names; its last writer was killed, so that part of it is still in the journal."""
    cache = ProgramCache(folder=folder / "live")
    entries = list(kept().items())
    for key, outcome in entries[:8]:
        cache.put(key, outcome)
    (folder / "live" / FILE).chmod(0o600)
    with closing(sqlite3.connect(folder / "live" / FILE)) as connection:  # keeps the journal from being emptied
        connection.execute("SELECT count(*) FROM programs").fetchone()
        for key, outcome in entries[8:]:
            cache.put(key, outcome)
        shutil.copytree(folder / "live", folder / "pristine")


def damage(folder: Path, seed: int) -> str:
    """Damages the cache in `folder`, always in the same way for the same seed; returns how."""
    chance = random.Random(seed)
    kind = chance.choice(list(DAMAGES))
    DAMAGES[kind](folder, chance)
    return kind


def same(found: object, wanted: CompiledProgram | CompilerRefusal) -> bool:
    """True if a cache returned its original contents."""
    if isinstance(wanted, CompilerRefusal):
        return isinstance(found, CompilerRefusal) and found.__dict__ == wanted.__dict__
    return found == replace(wanted, from_cache=True)


def sealed(key: str, payload: bytes) -> bytes:
    """An entry whose checksum is right, whatever is in it."""
    packed = zlib.compress(payload, 9)
    return hashlib.sha256(key.encode() + b"\0" + packed).digest() + packed


def write_entry(folder: Path, key: str, entry: Any) -> None:
    """Puts something in the place of an entry."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as connection:
        connection.execute("UPDATE programs SET entry = ? WHERE key = ?", (entry, key))


def _flip(file: Path, chance: random.Random, most: int) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, most)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def _one_of(folder: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(path for path in folder.glob(f"{FILE}*") if path.stat().st_size))


def _flips(folder: Path, chance: random.Random) -> None:
    _flip(_one_of(folder, chance), chance, 8)


def _flips_in_the_head(folder: Path, chance: random.Random) -> None:
    file = folder / FILE
    content = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 4)):
        content[chance.randrange(300)] = chance.randrange(256)
    file.write_bytes(content)


def _flips_in_a_page(folder: Path, chance: random.Random) -> None:
    """In the part of a page that says what is where."""
    for name in (f"{FILE}-wal", f"{FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
    file = folder / FILE
    content = bytearray(file.read_bytes())
    page = chance.randrange(len(content) // 4096) * 4096
    for _ in range(chance.randint(1, 6)):
        content[page + chance.randrange(60)] = chance.randrange(256)
    file.write_bytes(content)


def _zeros(folder: Path, chance: random.Random) -> None:
    file = _one_of(folder, chance)
    content = bytearray(file.read_bytes())
    begin = chance.randrange(len(content))
    size = min(chance.choice((1, 512, 4096, 65536)), len(content) - begin)
    content[begin : begin + size] = bytes([chance.choice((0, 255, 165))]) * size
    file.write_bytes(content)


def _cut(folder: Path, chance: random.Random) -> None:
    file = _one_of(folder, chance)
    os.truncate(file, chance.randrange(file.stat().st_size))


def _garbage(folder: Path, chance: random.Random) -> None:
    _one_of(folder, chance).write_bytes(chance.randbytes(chance.choice((0, 1, 100, 5000))))


def _lost(folder: Path, chance: random.Random) -> None:
    _one_of(folder, chance).unlink()


def _garbage_entry(folder: Path, chance: random.Random) -> None:
    key = chance.choice(list(kept()))
    write_entry(folder, key, chance.randbytes(chance.choice((0, 1, 32, 33, 500))))


def _other_entry(folder: Path, chance: random.Random) -> None:
    """A whole entry, under a key that it does not belong to."""
    first, second = chance.sample(list(kept()), 2)
    with closing(sqlite3.connect(folder / FILE)) as connection:
        (entry,) = connection.execute("SELECT entry FROM programs WHERE key = ?", (first,)).fetchone()
    write_entry(folder, second, entry)


def _mistyped_entry(folder: Path, chance: random.Random) -> None:
    """The checksum is right, and a field, or the whole of it, is of another type."""
    key = chance.choice(list(kept()))
    small: dict[str, Any] = {
        name: getattr(PROGRAM, name)
        for name in PROGRAM.__slots__
        if name not in ("listings", "utilization", "vmem_report", "top_level_hlo", "constants", "from_cache")
    }
    texts: list[Any] = [["listings", "TLP", 3], ["vmem_report", "", 0], ["top_level_hlo", "", 0]]
    wrong: tuple[Any, ...] = (None, True, "7", [], {}, -1, 10**400, float("nan"), "\ud800", [["x"]], {"a": 1})
    head: Any = {"program": small, "texts": texts}
    match chance.randrange(6):
        case 0:
            name = chance.choice(list(small))
            right = (int, float, type(None)) if name.startswith("cost") else (int, float, type(small[name]))
            small[name] = chance.choice([each for each in wrong if type(each) not in right])
        case 1:
            del small[chance.choice(list(small))]
        case 2:
            small["more"] = 1
        case 3:
            texts[chance.randrange(3)][chance.randrange(3)] = chance.choice(wrong)
        case 4:
            head = chance.choice((*wrong, {"program": texts, "texts": small}, {"refusal": small, "texts": []}))
        case 5:
            head["texts"] = chance.choice((None, 5, "ab", {}, [5], [[]], texts * 2, [["listings", "TLP", 10**30]]))
    write_entry(folder, key, sealed(key, json.dumps(head).encode() + b"\n" + b"abc"))


def _bomb(folder: Path, chance: random.Random) -> None:
    """Small on disk: deep JSON, or much of it, or a gigabyte of zeros."""
    key = chance.choice(list(kept()))
    depth = b"[" * 100_000
    payload = chance.choice((depth, b'{"program":' + depth, b"[" + b"[]," * 1_000_000, b"9" * 100_000 + b"\n"))
    write_entry(folder, key, sealed(key, payload))


def _schema(folder: Path, chance: random.Random) -> None:
    """Objects in place of the table, or in addition to it."""
    statement = chance.choice(
        (
            "DROP TABLE programs; CREATE TABLE programs (key, used, entry)",
            "DROP TABLE programs; CREATE VIEW programs AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 "
            "FROM n) SELECT i AS key, i AS used, i AS entry FROM n",
            "CREATE TRIGGER t AFTER UPDATE ON programs BEGIN DELETE FROM programs; END",
            "DROP INDEX programs_by_use",
            "CREATE TABLE more (x); INSERT INTO more VALUES (1)",
            "DROP TABLE programs",
            "PRAGMA journal_mode = DELETE",
            "PRAGMA encoding; DELETE FROM programs; VACUUM",
        )
    )
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as connection:
        connection.executescript(statement)


def _journal(folder: Path, chance: random.Random) -> None:
    """SQLite takes a journal of this kind back, and in it finds the names of files to remove."""
    name = os.fsencode(folder / "precious")
    header = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + chance.randbytes(20).ljust(504, b"\0")
    trailer = b"\0\0\0\0" + name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + header[:8]
    (folder / f"{FILE}-journal").write_bytes(header + trailer)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "flips": _flips,
    "flips in the head": _flips_in_the_head,
    "flips in a page": _flips_in_a_page,
    "zeros": _zeros,
    "cut": _cut,
    "garbage": _garbage,
    "lost": _lost,
    "garbage entry": _garbage_entry,
    "entry of another key": _other_entry,
    "mistyped entry": _mistyped_entry,
    "bomb": _bomb,
    "schema": _schema,
    "journal": _journal,
}
