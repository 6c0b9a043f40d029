"""Compiler flags: those of the user's environment, and those of a target."""

import dataclasses
import os

import pytest
from compiled_functions import TPU7X, V5E, compile_in, kernel, plain, square

from systolic.chips import chip, with_flags
from systolic.compiler import CompilerFlagError, CompilerRefusal, ProgramCache, WorkerPool

pytestmark = pytest.mark.fresh_workers


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(max_workers=1, time_limit_s=60) as pool:
        yield pool


@pytest.mark.exhaustive
def test_the_users_flags_are_kept_and_count(monkeypatch):
    keys = set()
    for flags in ("", "--xla_tpu_scoped_vmem_limit_kib=1024"):
        monkeypatch.setenv("LIBTPU_INIT_ARGS", flags)
        with WorkerPool(max_workers=1) as pool:
            assert flags in pool.submit(lambda: os.environ["LIBTPU_INIT_ARGS"]).result()
            keys.add(compile_in(pool, kernel, (square(256), square(256)), V5E).key)
    assert len(keys) == 2


@pytest.mark.exhaustive
def test_flags_of_a_target_count_and_reach_the_compiler(pool, tmp_path):
    cache = ProgramCache(folder=tmp_path)
    args = (square(1024), square(1024))

    def limited(limit_kib):
        return dataclasses.replace(V5E, flags={"xla_tpu_scoped_vmem_limit_kib": str(limit_kib)})

    assert compile_in(pool, kernel, args, V5E, cache).key != compile_in(pool, kernel, args, limited(20000), cache).key
    assert compile_in(pool, kernel, args, limited(20000), cache).from_cache
    with pytest.raises(CompilerRefusal, match="vmem"):
        compile_in(pool, kernel, args, limited(1024), cache)


@pytest.mark.parametrize("value", [True, "true", "True", 1])
def test_a_truth_value_is_spelled_as_the_flag_takes_it(pool, value):
    """XLA's own options take True alone, those of libtpu take `true` too."""
    flags = with_flags(chip("v5e"), {"xla_hlo_profile": value, "xla_tpu_rwb_fusion": value}).compiler_flags
    compile_in(pool, plain, (square(256), square(256)), dataclasses.replace(V5E, flags=flags))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"xla_tpu_no_such_flag": "1"}, "xla_tpu_no_such_flag=1: No such compile option.*LIBTPU_INIT_ARGS"),
        ({"xla_tpu_scoped_vmem_limit_kib": "much"}, "xla_tpu_scoped_vmem_limit_kib=much: Failed to parse 'much'"),
        ({"xla_tpu_dvfs_p_state": "9"}, "xla_tpu_dvfs_p_state=9: P-state is out of range"),
    ],
)
def test_a_flag_that_the_compiler_does_not_know(pool, flags, says):
    with pytest.raises(CompilerFlagError, match=says) as caught:
        compile_in(pool, plain, (square(256), square(256)), dataclasses.replace(TPU7X, flags=flags))
    assert "\n" not in str(caught.value)
