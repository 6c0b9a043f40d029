"""The real compiler in real workers. Needs libtpu and no TPU."""

import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_functions import TPU7X, V4, V5E, V5P, V6E, body, compile_in, kernel, plain, square
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.compiler import (
    CompilerCrash,
    CompilerError,
    CompilerRefusal,
    CompilerTimeout,
    ProgramCache,
    Target,
    WorkerPool,
    abstract_arguments,
    compile_function,
)

pytestmark = pytest.mark.fresh_workers

ALL = pytest.mark.parametrize("target", [V5E, V5P, V6E, TPU7X], ids=lambda target: target.name)
WAIT_S = 60


def pipelined(lhs, rhs):
    def outer(lhs_hbm, rhs_hbm, out_hbm):
        assert pltpu.get_tpu_info().vmem_capacity_bytes > 0
        blocks = [pl.BlockSpec((128, 256), lambda i: (i, 0)), pl.BlockSpec((256, 256), lambda i: (0, 0))]
        inner = pltpu.emit_pipeline(body, grid=(2,), in_specs=blocks, out_specs=[blocks[0]])
        inner(lhs_hbm, rhs_hbm, out_hbm)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(outer, in_specs=[anywhere, anywhere], out_specs=anywhere, out_shape=square(256))(lhs, rhs)


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(max_workers=1, time_limit_s=WAIT_S) as pool:
        yield pool


def dumped():
    return [path for path in Path(os.environ["SYSTOLIC_DUMP_DIR"]).rglob("*") if not path.is_dir()]


@pytest.mark.exhaustive
@ALL
def test_a_plain_function_compiles(pool, target):
    program = compile_in(pool, plain, (square(256), square(256)), target)
    names = set(re.findall(r"= inlined_call [^\n]*?/\* %(\S+) =", program.listings["TLP"]))
    assert names
    assert set(program.listings) == names | {"TLP"}
    assert program.top_level_hlo.startswith("HloModule jit_plain")
    assert all("vmatmul" in program.listings[name] for name in names if "fusion" in name)
    assert (program.argument_bytes, program.output_bytes) == (2 * 256 * 256 * 4, 256 * 256 * 4)
    assert program.cost_flops is not None
    assert program.cost_flops >= 2 * 256**3
    assert program.generated_code_bytes > 0
    assert (program.chip, program.from_cache) == (target.name, False)
    assert program.jax_version == jax.__version__
    assert pool.submit(dumped).result() == []


@ALL
def test_a_kernel_compiles_and_is_found_again(pool, target, tmp_path):
    cache = ProgramCache(folder=tmp_path)
    args = (square(256, "bfloat16"), square(256, "bfloat16"))

    def twice(lhs, rhs):
        out = jax.ShapeDtypeStruct((256, 256), jnp.float32)
        return pl.pallas_call(body, out_shape=out, name="twice")(lhs, rhs)

    first = compile_in(pool, twice, args, target, cache)
    second = compile_in(pool, twice, args, target, cache)
    assert set(first.listings) == {"TLP", "twice.1"}
    assert re.search(r"vmatmul|vmatpush", first.listings["twice.1"])
    assert (first.from_cache, second.from_cache) == (False, True)
    assert second.listings == first.listings
    assert (second.key, second.compile_s, second.top_level_hlo) == (first.key, first.compile_s, first.top_level_hlo)
    assert pool.submit(dumped).result() == []


def test_without_a_cache_it_is_compiled_each_time(pool):
    first, second = (compile_in(pool, kernel, (square(256), square(256)), V5E) for _ in range(2))
    assert not second.from_cache
    assert second.listings == first.listings


@ALL
def test_code_that_asks_for_the_chip_compiles(pool, target):
    assert "TLP" in compile_in(pool, pipelined, (square(256), square(256)), target).listings


def test_arrays_count_by_shape_and_dtype(pool, tmp_path):
    cache = ProgramCache(folder=tmp_path)
    first = compile_in(pool, plain, (square(256), square(256)), V5E, cache)
    ones = np.ones((256, 256), np.float32)
    assert compile_in(pool, plain, (ones, 2 * ones), V5E, cache).key == first.key
    assert compile_in(pool, plain, abstract_arguments((ones, ones)), V5E, cache).from_cache


def test_the_callers_settings_count(pool):
    def key():
        return compile_in(pool, plain, (square(256), square(256)), V5E).key

    usual = key()
    with jax.default_matmul_precision("highest"):
        assert key() != usual
    assert key() == usual


def test_constants_count_by_value(pool):
    def keys(value):
        table = np.full((256, 256), value, np.float32)
        table[3, 4] = 0
        return compile_in(pool, lambda lhs: lhs @ table, (square(256),), V5E).key

    assert keys(1.0) == keys(1.0)
    assert keys(1.0) != keys(2.0)


MODULE = """
import jax
from jax.experimental import pallas as pl
def body(x_vmem, out_vmem):
    out_vmem[...] = x_vmem[...] * 2
def double(x):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


@pytest.mark.exhaustive
def test_a_program_is_known_wherever_its_source_stands_and_in_every_process(tmp_path):
    def double(folder, x):
        sys.path.insert(0, folder)
        import double_module  # pyright: ignore[reportMissingImports]

        return double_module.double(x)

    cache = ProgramCache(folder=tmp_path / "cache")
    found = []
    for name, text in {"one": MODULE, "two": "\n\n\n# moved down\n" + MODULE}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "double_module.py").write_text(text)
        with WorkerPool(max_workers=1) as pool:
            fn = functools.partial(double, str(tmp_path / name))
            found.append(compile_in(pool, fn, (square(256),), V5E, cache))
    assert [program.from_cache for program in found] == [False, True]
    assert str(tmp_path) not in found[0].top_level_hlo


@pytest.mark.exhaustive
def test_too_much_vmem_is_refused_with_bytes_and_the_refusal_is_kept(tmp_path):
    cache = ProgramCache(folder=tmp_path)
    args = (square(1280), square(1280))

    def again_without_compiling():
        # A compilation would now raise something else.
        jax.stages.Lowered.compile = None  # pyright: ignore[reportAttributeAccessIssue]
        return compile_function(kernel, args, V5E, cache=cache)

    with WorkerPool(max_workers=1) as pool:
        with pytest.raises(CompilerRefusal) as first:
            compile_in(pool, kernel, args, V5E, cache)
        assert pool.submit(dumped).result() == []
        with pytest.raises(CompilerRefusal) as second:
            pool.submit(again_without_compiling).result()
    for refusal in (first.value, second.value):
        assert refusal.kind == "vmem"
        assert refusal.requested_bytes == round(19.20 * 2**20)
        assert refusal.available_bytes == 16 * 2**20
        assert "E1001" in refusal.message


@pytest.mark.parametrize(("dtype", "target"), [("int8", V4), ("float16", V5E)])
def test_a_type_the_chip_has_not_is_refused_with_its_line(pool, tmp_path, dtype, target):
    line = body.__code__.co_firstlineno + 1
    for _ in range(2):
        with pytest.raises(CompilerRefusal) as caught:
            compile_in(pool, kernel, (square(256, dtype), square(256, dtype)), target, ProgramCache(folder=tmp_path))
        assert caught.value.kind == "unsupported"
        assert caught.value.where == f"{body.__code__.co_filename}:{line} in body"


def test_an_illegal_block_is_refused(pool):
    def copy(x):
        block = pl.BlockSpec((100, 128), lambda i: (i, 0))

        def copy_body(x_vmem, out_vmem):
            out_vmem[...] = x_vmem[...]

        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(copy_body, grid=(2,), in_specs=[block], out_specs=block, out_shape=out)(x)

    with pytest.raises(CompilerRefusal, match="divisible by 8 and 128") as caught:
        compile_in(pool, copy, (jax.ShapeDtypeStruct((1000, 128), jnp.float32),), V5E)
    assert caught.value.kind == "other"


def test_a_mistake_in_the_function_is_the_users_own(pool):
    def wrong(lhs, rhs):
        return lhs @ rhs[:10]

    with pytest.raises(TypeError, match="contracting dimensions"):
        compile_in(pool, wrong, (square(256), square(256)), V5E)


def test_a_kernel_without_arguments_compiles_for_the_chip(pool):
    def filled():
        def fill(out_vmem):
            out_vmem[...] = jnp.ones(out_vmem.shape, out_vmem.dtype)

        return pl.pallas_call(fill, out_shape=square(256))()

    program = compile_in(pool, filled, (), V5P)
    assert (program.argument_bytes, program.output_bytes) == (0, 256 * 256 * 4)


def test_a_function_of_nothing_has_no_program(pool):
    with pytest.raises(CompilerError, match="nothing to run"):
        compile_in(pool, lambda: (), (), V5E)


@pytest.mark.parametrize(("name", "topology", "says"), [("v9", "v9:2x2", "v9:2x2"), ("v6e", "v5e:2x2", "TPU v5 lite")])
def test_a_wrong_target_says_so(pool, name, topology, says):
    target = Target(name=name, topology=topology, device_kind="TPU v6 lite", cores_per_device=1)
    with pytest.raises(CompilerError, match=says):
        compile_in(pool, plain, (square(256), square(256)), target)


def test_outside_a_worker_it_says_so():
    with pytest.raises(CompilerError, match="environment of a worker"):
        compile_function(plain, (square(256), square(256)), V5E, cache=None)


@pytest.mark.exhaustive
def test_a_crash_inside_the_compiler_costs_one_job(monkeypatch):
    # This flag takes away what the lowering of a custom call inside a conditional relies on: a segmentation fault.
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_jf_hlo_deduplication=false")

    def branches(lhs, rhs):
        return jax.lax.cond(lhs[0, 0] > 0, lambda: kernel(lhs, rhs), lambda: kernel(rhs, lhs) * 2)

    with WorkerPool(max_workers=1) as pool:
        with pytest.raises(CompilerCrash, match="SIGSEGV during branches on v5e") as caught:
            compile_in(pool, branches, (square(256), square(256)), V5E, label="branches on v5e")
        assert "xla::jellyfish" in caught.value.stderr_tail
        monkeypatch.delenv("LIBTPU_INIT_ARGS")
        assert "TLP" in compile_in(pool, branches, (square(256), square(256)), V5E).listings


@pytest.mark.exhaustive
def test_a_compilation_is_stopped_at_its_time_limit():
    with WorkerPool(max_workers=1) as pool:
        compile_in(pool, kernel, (square(128), square(128)), V5E)
        with pytest.raises(CompilerTimeout, match="kernel for v5e was stopped after its time limit of 2 s"):
            compile_in(pool, kernel, (square(8192), square(8192)), V5E, time_limit_s=2)
        assert "TLP" in compile_in(pool, kernel, (square(128), square(128)), V5E).listings


PARENT = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
import functools, jax, pathlib, os
from jax.experimental import pallas as pl
from systolic.compiler import Target, WorkerPool, compile_function
def body(a, b, out):
    out[...] = a[...] @ b[...]
def task(file, *args):
    file.write_text(str(os.getpid()))
    return compile_function(lambda a, b: pl.pallas_call(body, out_shape=args[0][0])(a, b), *args, cache=None)
with WorkerPool() as pool:
    whole = jax.ShapeDtypeStruct((8192, 8192), "float32")
    v5e = Target(name="v5e", topology="v5e:2x2", device_kind="TPU v5 lite", cores_per_device=1)
    pool.submit(task, pathlib.Path(sys.argv[2]), (whole, whole), v5e).result()
"""


@pytest.mark.exhaustive
def test_a_killed_parent_leaves_neither_process_nor_folder(tmp_path, monkeypatch):
    temporary, file = tmp_path / "temporary", tmp_path / "pid"
    temporary.mkdir()
    with subprocess.Popen([sys.executable, "-c", PARENT, temporary, file], stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + WAIT_S
        # The HLO of the program appears when the compiler itself is at work, for more than a minute.
        while not list(temporary.glob("*/dump/*TLP-hlo.txt")):
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        parent.send_signal(signal.SIGKILL)
    pid = int(file.read_text())
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/stat").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with WorkerPool():
        assert list(temporary.iterdir()) == []
