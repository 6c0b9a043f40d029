import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import diskcache
import platformdirs
import pytest

from systolic.compiler import CacheWarning, CompiledProgram, CompilerRefusal, ProgramCache, cache_folder

PROGRAM = CompiledProgram(
    listings={"TLP": "bundles é" * 20_000, "mm.1": "more"},
    utilization={"TLP": "table"},
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
)


@pytest.fixture
def cache(tmp_path):
    return ProgramCache(folder=tmp_path / "programs")


def test_hit_and_miss(cache):
    assert cache.get("k") is None
    cache.put("k", PROGRAM)
    assert cache.get("k") == replace(PROGRAM, from_cache=True)
    assert cache.get("other") is None


def test_a_refusal_comes_back_whole(cache):
    refusal = CompilerRefusal("text\nmore", kind="vmem", requested_bytes=7, available_bytes=5)
    cache.put("k", refusal)
    kept = cache.get("k")
    assert isinstance(kept, CompilerRefusal)
    assert kept.__dict__ == refusal.__dict__


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
    cache.put("k", PROGRAM)
    size = sum(file.stat().st_size for file in cache.folder.rglob("*.val"))
    assert size < len(PROGRAM.listings["TLP"]) / 10


@pytest.mark.parametrize("damage", [b"not zlib", b"", None])
def test_a_damaged_entry_is_a_miss_and_goes(cache, damage):
    cache.put("k", PROGRAM)
    with diskcache.Cache(str(cache.folder)) as store:
        good = store["k"]
        assert isinstance(good, bytes)
        store["k"] = good[: len(good) // 2] if damage is None else damage
    with pytest.warns(CacheWarning, match="damaged cache entry"):
        assert cache.get("k") is None
    assert cache.get("k") is None
    cache.put("k", PROGRAM)
    assert cache.get("k") is not None


def test_a_lost_value_file_is_a_miss(cache):
    cache.put("k", replace(PROGRAM, top_level_hlo="".join(chr(33 + i * i % 9973) for i in range(100_000))))
    files = list(cache.folder.rglob("*.val"))
    assert files
    for file in files:
        file.unlink()
    assert cache.get("k") is None


def test_a_damaged_index_is_set_aside(cache):
    cache.put("k", PROGRAM)
    for file in cache.folder.glob("cache.db*"):
        file.write_bytes(b"this is no database" * 1000)
    with pytest.warns(CacheWarning, match="moved it to"):
        assert cache.get("k") is None
    (aside,) = cache.folder.parent.glob("programs.damaged-*")
    assert (aside / "cache.db").read_bytes().startswith(b"this is no database")
    cache.put("k", PROGRAM)
    assert cache.get("k") is not None


def test_an_index_damaged_further_in_is_set_aside(cache):
    for number in range(50):
        cache.put(f"k{number}", PROGRAM)
    database = cache.folder / "cache.db"
    content = bytearray(database.read_bytes())
    content[100:] = b"\xa5" * (len(content) - 100)  # the header, which is what opening looks at, is left
    database.write_bytes(bytes(content))
    for leftover in (*cache.folder.glob("cache.db-*"),):
        leftover.unlink()
    with pytest.warns(CacheWarning):
        assert cache.get("k1") is None
    cache.put("k1", PROGRAM)
    assert cache.get("k1") is not None


def test_a_folder_that_cannot_be_made_is_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = ProgramCache(folder=tmp_path / "file" / "programs")
    with pytest.warns(CacheWarning, match="could not be written"):
        cache.put("k", PROGRAM)
    with pytest.warns(CacheWarning, match="could not be read"):
        assert cache.get("k") is None


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
