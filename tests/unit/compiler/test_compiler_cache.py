import pickle
import random
import sqlite3
import subprocess
import sys
import time
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest
from cache_damages import PROGRAM, REFUSAL, same

from systolic.compiler import CacheWarning, ProgramCache, cache_folder

SUPPORT = Path(__file__).parents[2] / "support"  # for a process of its own, which imports from there


@pytest.fixture
def cache(tmp_path):
    return ProgramCache(folder=tmp_path / "programs")


def test_hit_and_miss(cache):
    assert cache.get("k") is None
    cache.put("k", PROGRAM)
    assert cache.get("k") == replace(PROGRAM, from_cache=True)
    assert cache.get("other") is None


def test_a_refusal_comes_back_whole(cache):
    cache.put("k", REFUSAL)
    assert same(cache.get("k"), REFUSAL)


def test_the_variable_is_read_when_called(monkeypatch, tmp_path):
    cache = ProgramCache()
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "first"))
    cache.put("k", PROGRAM)
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "second"))
    assert cache.get("k") is None
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path / "first"))
    assert cache.get("k") is not None
    monkeypatch.delenv("SYSTOLIC_CACHE_DIR")
    assert cache_folder() == Path(platformdirs.user_cache_dir("systolic")) / "programs"


def test_listings_are_compressed(cache):
    cache.put("k", replace(PROGRAM, listings={"TLP": "bundles" * 100_000}))
    assert cache.size_bytes() < 700_000 / 10


def test_texts_come_back_to_the_letter(cache):
    texts = {"": "", "é\0\n": "a\nb\0é𝄞\ud800", "\udcff": "\udcff"}
    program = replace(
        PROGRAM, listings=texts, utilization=texts, vmem_report="\ud800", cost_flops=float("inf"), key="é"
    )
    cache.put("k", program)
    assert cache.get("k") == replace(program, from_cache=True)


def test_what_was_used_longest_ago_goes_first(cache):
    texts = random.Random(0)
    programs = {
        f"k{number}": replace(PROGRAM, top_level_hlo=texts.randbytes(50_000).decode("latin-1")) for number in range(12)
    }
    small = replace(cache, size_limit_bytes=600_000)
    for key, program in list(programs.items())[:4]:
        small.put(key, program)
    with closing(sqlite3.connect(small.file)) as connection, connection:
        connection.execute("UPDATE programs SET used = used - ?", (7200 * 10**9,))
    assert small.get("k0") is not None  # used, so that it stays
    for key, program in list(programs.items())[4:]:
        small.put(key, program)
    kept = [key for key in programs if small.get(key) is not None]
    assert kept == ["k0", *list(programs)[-len(kept) + 1 :]]
    assert 3 < len(kept) < 12
    assert small.count() == len(kept)
    assert small.size_bytes() < 900_000


def test_the_newest_stays_whatever_its_size(cache):
    small = replace(cache, size_limit_bytes=1)
    small.put("first", PROGRAM)
    small.put("second", PROGRAM)
    assert (small.get("first"), small.get("second")) == (None, replace(PROGRAM, from_cache=True))


def test_what_it_says_of_itself(cache):
    assert (cache.count(), cache.size_bytes(), cache.fault()) == (0, 0, None)
    cache.put("k", PROGRAM)
    assert (cache.count(), cache.fault()) == (1, None)
    assert cache.size_bytes() == cache.file.stat().st_size > 4096
    cache.file.write_bytes(b"no database")
    assert (cache.count(), cache.fault()) == (0, "its head is another")


def test_a_folder_that_cannot_be_made_is_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = ProgramCache(folder=tmp_path / "file" / "programs")
    with pytest.warns(CacheWarning, match="could not be written"):
        cache.put("k", PROGRAM)
    with pytest.warns(CacheWarning, match="could not be read"):
        assert cache.get("k") is None


@pytest.mark.exhaustive
def test_a_killed_writer_leaves_only_whole_entries(cache):
    text = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[2])\n"
        "from cache_damages import PROGRAM, ProgramCache\n"
        "cache = ProgramCache(folder=pathlib.Path(sys.argv[1]), size_limit_bytes=200_000)\n"
        "print(flush=True)\n"
        "for number in range(10**6):\n"
        "    cache.put(str(number), PROGRAM)\n"
    )
    command = [sys.executable, "-W", "error", "-c", text, str(cache.folder), str(SUPPORT)]
    for moment in (0, 0.003, 0.02, 0.1):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(moment)
            writer.kill()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cache.fault() is None
            found = [cache.get(str(number)) for number in range(0, 60, 3)]
            assert all(same(each, PROGRAM) for each in found if each is not None)
            cache.put("k", PROGRAM)
            assert same(cache.get("k"), PROGRAM)


def test_two_processes_share_it(cache, tmp_path):
    (tmp_path / "program.pickle").write_bytes(pickle.dumps(PROGRAM))
    text = (
        "import pickle, sys, pathlib\n"
        "from systolic.compiler import ProgramCache\n"
        "who, folder, program = sys.argv[1:]\n"
        "program = pickle.loads(pathlib.Path(program).read_bytes())\n"
        "cache = ProgramCache(folder=pathlib.Path(folder))\n"
        "for number in range(30):\n"
        "    cache.put(f'{who}{number}', program); cache.put('both', program)\n"
        "    assert cache.get('both') is not None\n"
    )
    command = [sys.executable, "-W", "error", "-c", text]
    processes = [
        subprocess.Popen([*command, who, str(cache.folder), str(tmp_path / "program.pickle")]) for who in ("a", "b")
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(cache.get(f"{who}{number}") is not None for who in "ab" for number in range(30))
