"""A cache that is damaged, hostile, not ours, read-only or on a full disk is a slow cache, and no more."""

from __future__ import annotations

import grp
import hashlib
import os
import pickle
import pwd
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cache_damages import DAMAGES, FILE, PROGRAM, damage, kept, make_pristine, same, sealed, write_entry

from systolic.compiler import CacheWarning, ProgramCache, cache_entry

SUPPORT = Path(__file__).parents[2] / "support"  # for a process of its own, which imports from there

ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.fixture
def cache(tmp_path: Path) -> ProgramCache:
    cache = ProgramCache(folder=tmp_path / "programs")
    cache.put("k", PROGRAM)
    return cache


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    make_pristine(folder)
    return folder / "pristine"


class Sentinel:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, 320, 80))
def test_any_damage_leaves_the_program_or_nothing(pristine: Path, tmp_path: Path, start: int) -> None:
    wanted = kept()
    for seed in range(start, start + 80):
        folder = tmp_path / str(seed)
        shutil.copytree(pristine, folder)
        (folder / "precious").write_text("x")
        how = damage(folder, seed)
        cache = ProgramCache(folder=folder)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = {key: cache.get(key) for key in list(wanted)[seed % 3 :: 3]}
            cache.put("new", PROGRAM)
            assert same(cache.get("new"), PROGRAM), (seed, how)  # it heals
        assert {warning.category for warning in caught} <= {CacheWarning}, (seed, how)
        assert all(each is None or same(each, wanted[key]) for key, each in found.items()), (seed, how)
        assert (folder / "precious").exists()


@pytest.mark.parametrize("kind", ["garbage entry", "entry of another key", "mistyped entry", "bomb", "journal"])
def test_damage_to_an_entry_is_told(pristine: Path, tmp_path: Path, kind: str) -> None:
    for seed in range(8):
        folder = tmp_path / str(seed)
        shutil.copytree(pristine, folder)
        (folder / "precious").write_text("x")
        DAMAGES[kind](folder, random.Random(seed))
        with pytest.warns(CacheWarning, match="damaged"):
            found = [ProgramCache(folder=folder).get(key) for key in kept()]
        assert None in found
        assert kind == "journal" or found.count(None) == 1


def test_a_journal_of_another_kind_removes_files_where_sqlite_reads_it(pristine: Path, tmp_path: Path) -> None:
    """The damage named "journal" is real; otherwise the tests above would prove nothing."""
    folder = tmp_path / "programs"
    shutil.copytree(pristine, folder)
    (folder / "precious").write_text("x")
    DAMAGES["journal"](folder, random.Random(0))
    with closing(sqlite3.connect(folder / FILE)) as connection:
        connection.execute("SELECT * FROM sqlite_schema").fetchall()
    assert not (folder / "precious").exists()


def test_a_pickle_is_never_read(cache: ProgramCache, tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    evil = pickle.dumps(Sentinel(sentinel))
    write_entry(cache.file.parent, "k", evil)
    with pytest.warns(CacheWarning, match="checksum"):
        assert cache.get("k") is None
    write_entry(cache.file.parent, "k", sealed("k", evil))
    assert not sentinel.exists()
    pickle.loads(evil)
    assert sentinel.exists()


def test_what_unpacks_to_gigabytes_is_not_unpacked(monkeypatch: pytest.MonkeyPatch, cache: ProgramCache) -> None:
    monkeypatch.setattr(cache_entry, "MAX_ENTRY_BYTES", 2**20)
    packing = zlib.compressobj(9)
    packed = b"".join([packing.compress(bytes(2**20)) for _ in range(64)]) + packing.flush()
    assert len(packed) < 10**5
    digest = hashlib.sha256(b"k\0" + packed).digest()
    write_entry(cache.file.parent, "k", digest + packed)
    tracemalloc.start()
    with pytest.warns(CacheWarning, match="larger than"):
        assert cache.get("k") is None
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()
    with pytest.warns(CacheWarning, match=r"could not be written .*holds 1,048,576 at the most"):
        cache.put("k", replace(PROGRAM, top_level_hlo="x" * 2**20))


# ---- whose the folder is ----


def test_a_new_folder_is_this_users_alone(cache: ProgramCache) -> None:
    assert cache.file.parent.stat().st_mode & 0o777 == 0o700
    assert cache.file.stat().st_mode & 0o777 == 0o600


def expect_no_cache(cache: ProgramCache, said: str) -> None:
    with pytest.warns(CacheWarning, match=f"programs are not cached: .*{said}"):
        assert cache.get("k") is None
    before = {path: path.lstat().st_mtime_ns for path in cache.file.parent.iterdir()}
    with pytest.warns(CacheWarning, match=f"programs are not cached: .*{said}"):
        cache.put("new", PROGRAM)
    assert before == {path: path.lstat().st_mtime_ns for path in cache.file.parent.iterdir()}
    assert said in str(cache.fault())


def test_a_folder_that_everybody_may_write_to_is_not_used(cache: ProgramCache) -> None:
    cache.file.parent.chmod(0o777)
    expect_no_cache(cache, "everybody may write to")
    cache.file.parent.chmod(0o755)
    assert cache.get("k") is not None
    cache.file.chmod(0o666)
    expect_no_cache(cache, "everybody may write to")


@pytest.mark.parametrize(
    ("name", "members", "is_private"),
    [("me", [], True), ("me", ["me"], True), ("me", ["me", "other"], False), ("users", [], False), (None, [], False)],
)
def test_a_folder_that_a_group_may_write_to_is_used_if_the_group_is_this_users_own(
    cache: ProgramCache, monkeypatch: pytest.MonkeyPatch, name: str | None, members: list[str], is_private: bool
) -> None:
    def group_of(_number: int) -> SimpleNamespace:
        if name is None:
            raise KeyError("a container has numbers without names")
        return SimpleNamespace(gr_name=name, gr_mem=members)

    user = SimpleNamespace(pw_name="me", pw_gid=cache.file.stat().st_gid)
    monkeypatch.setattr(grp, "getgrgid", group_of)
    monkeypatch.setattr(pwd, "getpwuid", lambda _number: user)
    for path in (cache.file.parent, cache.file):
        before = path.stat().st_mode
        path.chmod(0o770)
        if is_private:
            assert cache.get("k") is not None
        else:
            expect_no_cache(cache, "all users of group")
        path.chmod(before)


def test_the_group_of_another_user_is_not_this_users_own(cache: ProgramCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have the same name in another list of groups."""
    group = cache.file.stat().st_gid
    monkeypatch.setattr(grp, "getgrgid", lambda _number: SimpleNamespace(gr_name="me", gr_mem=[]))
    monkeypatch.setattr(pwd, "getpwuid", lambda _number: SimpleNamespace(pw_name="me", pw_gid=group + 1))
    cache.file.parent.chmod(0o770)
    expect_no_cache(cache, "all users of group")


def test_a_clock_past_2262_is_no_error(cache: ProgramCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite counts nanoseconds in 63 bits."""
    monkeypatch.setattr(time, "time_ns", lambda: 2**63 + 5)
    cache.put("late", PROGRAM)
    assert cache.get("late") is not None
    assert cache.get("k") is not None
    assert (cache.count(), cache.fault()) == (2, None)


def test_another_users_folder_is_not_used(cache: ProgramCache, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if ROOT:
        os.chown(cache.file.parent, NOBODY, NOBODY)
    expect_no_cache(cache, "belongs to user")


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
def test_a_name_that_leads_elsewhere_is_not_followed(cache: ProgramCache, tmp_path: Path, ending: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"")
    path = cache.file.with_name(cache.file.name + ending)
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)
    expect_no_cache(cache, "not a regular file")
    assert elsewhere.read_bytes() == b""


def test_a_folder_in_the_place_of_the_file_is_not_used(cache: ProgramCache) -> None:
    cache.file.unlink()
    cache.file.mkdir()
    expect_no_cache(cache, "not a regular file")


def test_a_folder_that_cannot_have_that_name(tmp_path: Path) -> None:
    for name in ("a\0b", "x" * 300):
        cache = ProgramCache(folder=tmp_path / name)
        with pytest.warns(CacheWarning, match="could not be written"):
            cache.put("k", PROGRAM)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            assert cache.get("k") is None
        assert (cache.count(), cache.size_bytes()) == (0, 0)


def test_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    for name in ("a b?c#d%20", "é\udcff"):
        cache = ProgramCache(folder=tmp_path / name)
        cache.put("k", PROGRAM)
        assert same(cache.get("k"), PROGRAM)


# ---- what the disk bears ----

_USE = """
import os, resource, sys, warnings
import urllib.parse  # Path.as_uri imports it as it is called, when nobody may read Python's own folder any more
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from cache_damages import PROGRAM, ProgramCache, same
cache = ProgramCache(folder=Path(sys.argv[1]))
if "nobody" in sys.argv:
    os.setuid(int(sys.argv[4]))
if "full" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = cache.get("k")
    read = [(each.category.__name__, str(each.message)) for each in caught]
    cache.put("new", PROGRAM)
print(same(found, PROGRAM), read, [(each.category.__name__, str(each.message)) for each in caught[len(read):]])
"""


def use(folder: Path, *more: str) -> str:
    command = [sys.executable, "-c", _USE, str(folder), str(SUPPORT), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_folder_where_nothing_can_be_written_is_read() -> None:
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        folder = Path(outer) / "programs"
        ProgramCache(folder=folder).put("k", PROGRAM)
        if ROOT:  # whom no mode keeps from writing
            for path in (folder, *folder.iterdir()):
                os.chown(path, NOBODY, NOBODY)
        folder.chmod(0o500)
        said = use(folder, *(("nobody", str(NOBODY)) if ROOT else ()))
        folder.chmod(0o700)
    assert said.startswith("True [] [('CacheWarning', 'the program cache could not be written")


@pytest.mark.parametrize("room", [0, 4096, 30_000])
def test_a_full_disk_is_told(cache: ProgramCache, room: int) -> None:
    size = cache.file.stat().st_size
    said = use(cache.file.parent, "full", str(min(room, size)))
    assert "CacheWarning', 'the program cache could not be" in said
    assert same(cache.get("k"), PROGRAM)
    assert cache.fault() is None


def test_a_full_disk_where_there_is_no_cache_yet(tmp_path: Path) -> None:
    said = use(tmp_path / "programs", "full", "8192")
    assert said.startswith("False [] [('CacheWarning', 'the program cache could not be written")
    ProgramCache(folder=tmp_path / "programs").put("k", PROGRAM)
    assert same(ProgramCache(folder=tmp_path / "programs").get("k"), PROGRAM)
