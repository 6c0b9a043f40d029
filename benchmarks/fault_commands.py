"""Hostile options and hostile files: the command obeys what was written, or prints one line of error at once."""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import socket
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from fault_cases import CaseError, Section, Setting, mutated_text

import systolic
from systolic.chips import FlagError, SliceError, checked_flags
from systolic.chips.constants import load_constants
from systolic.cli import main
from systolic.compiler import NamedFunctionError
from systolic.compiler.named import check_function_name, named_argument
from systolic.compiler.named_shardings import mesh_axes
from systolic.store import TrialStore
from systolic.store.exported import read_trials_file
from systolic.validation.published import read_published

_LONGEST_S = 20.0  # for refusals before any work; another section may use the machine

# ---- options ----

_INTEGERS = {
    **{f"s{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (4, 8, 16, 32)},
    **{f"u{bits}": (0, 2**bits - 1) for bits in (4, 8, 16, 32)},
    "s64": (-(2**31), 2**31 - 1),  # as JAX holds it
    "u64": (0, 2**32 - 1),
}
_FLOATS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
_WORDS = (
    "0",
    "-1",
    "1.9",
    "1e3",
    "1e39",
    "1e999",
    "-1e-50",
    "nan",
    "inf",
    "1_0",
    "0x10",
    "",
    " ",
    "1 2",
    "٣",
    "--1",
    "true",
)
_LITERALS = (
    *(
        "{[]:1}",
        "{{}}",
        "-" * 5_000,
        "-" * 50_000,
        "~" * 9_000 + "1",
        "(" * 300 + ")" * 300,
        "1" * 5_000,
        "1e999",
        "\0",
    ),
    *(
        "'",
        "None",
        "(8,16)",
        "[1],[2]",
        "1],[2",
        "1]#",
        "a.b",
        "lambda: 0",
        "__import__('os')",
        "{1: [2]}",
        "b'\\xff'",
        "é",
    ),
    *(
        "\ud800",
        "\x1b[31m",
        "%s%n",
        "../..",
        "1" + "+1" * 4_000,
        "not " * 2_000 + "1",
        "f'{1}'",
        "'a' 'b'",
        "1_000",
        "\\d",
    ),
)


def _arguments(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    choose.choice((_numbers, _numbers, _argument_texts, _literals, _literals, _meshes, _flags))(choose)


def _numbers(choose: random.Random) -> None:
    """Check that an array holds the numbers that were written, and that a number it cannot hold is refused."""
    kind = choose.choice([*_INTEGERS, *_FLOATS])
    low, high = _INTEGERS.get(kind, (-(2**7), 2**7))
    edges = (low, high, low - 1, high + 1, 2 * high, choose.randint(low, high), 0, 2**63, -(10**30))
    words = [
        choose.choice((str(choose.choice(edges)), f"{choose.choice(edges)}.0", f"{choose.choice(edges)}.25"))
        if choose.random() < 0.9
        else choose.choice(_WORDS)
        for _ in range(choose.choice((1, 1, 2, 5)))
    ]
    text = f"{kind}[{len(words)}]={','.join(words)}"
    values = [_fraction(word) for word in words]
    array = _argument(text)
    if kind in _INTEGERS:
        fits = all(value is not None and value.denominator == 1 and low <= value <= high for value in values)
        if fits != (array is not None) or (array is not None and [int(value) for value in array] != values):
            raise CaseError(f"{text} became {array}")
        return
    if array is not None:
        limits: Any = jnp.finfo(_FLOATS[kind])
        for value, word, result in zip(values, words, array.astype(np.float64), strict=True):
            if value is None:
                if not (math.isnan(float(word)) and math.isnan(result)) and float(word) != result:
                    raise CaseError(f"{text} became {array}")
            elif abs(Fraction(float(result)) - value) > abs(value) * Fraction(float(limits.eps)) and abs(
                value
            ) > Fraction(float(limits.tiny)):
                raise CaseError(f"{text} became {array}")
    elif all(value is not None and abs(value) <= Fraction(float(limits_of(kind))) for value in values):
        raise CaseError(f"{text} was refused")


def limits_of(kind: str) -> Any:
    """Return the largest number of a float format."""
    limits: Any = jnp.finfo(_FLOATS[kind])
    return limits.max


def _fraction(word: str) -> Fraction | None:
    """Return the number that a word writes, or None if it is not a finite number."""
    try:
        return Fraction(word) if word.isascii() and "_" not in word and "/" not in word else None
    except ValueError:
        return None


def _argument_texts(choose: random.Random) -> None:
    seeds = (
        "bf16[8,128]",
        "s32[3]=1,5,2",
        "pred[2]=1,0",
        "f32[2,2]=0.5",
        "u8[1]=255",
        "nowhere.npy",
        "object[2]",
        "str[1]",
    )
    _argument(mutated_text(choose.choice(seeds), choose))


def _argument(text: str) -> np.ndarray | None:
    """Return the array of a text, or None if it is refused or is only a shape."""
    try:
        array = named_argument(text)
    except NamedFunctionError as error:
        _check_line(str(error))
        return None
    return array if isinstance(array, np.ndarray) else None


def _literals(choose: random.Random) -> None:
    """Check that commands with a hostile static argument exit with 2: the file does not exist either way."""
    value = choose.choice(_LITERALS)
    if choose.random() < 0.3:
        value = mutated_text(value, choose)
    name = choose.choice(("a", "a", "a", "a.b", "1", "", "é", "\ud800"))
    command, option = choose.choice(
        (("simulate", "--param"), ("check", "--param"), ("tune", "--over"), ("step", "--try"))
    )
    function = mutated_text("nowhere.py:f", choose) if choose.random() < 0.2 else "nowhere.py:f"
    _refused(command, option, f"{name}={value}", "--", function)


def _meshes(choose: random.Random) -> None:
    text = mutated_text(choose.choice(("data=2,model=4", "x=4", "a=1,b=1,c=1")), choose)
    try:
        axes = mesh_axes(text)
    except SliceError as error:
        _check_line(str(error))
    else:
        if ",".join(f"{name}={size}" for name, size in axes.items()) != ",".join(map(str.strip, text.split(","))):
            raise CaseError(f"{text!r} became {axes}")


def _flags(choose: random.Random) -> None:
    name = choose.choice(
        ("xla_tpu_scoped_vmem_limit_kib", "xla_hlo_profile", "xla_jf_dump_to", "vmem", "xla_x y", "--xla_a")
    )
    value = choose.choice(
        (True, False, 65536, 65536.0, 0.5, float("nan"), "true", "", "a b", "x" * 2000, "\0", 10**400)
    )
    try:
        (flag,) = checked_flags({name: value}).values()
    except FlagError as error:
        _check_line(str(error))
    else:
        if flag != ("65536" if value == 65536 else str(value).lower() if isinstance(value, bool) else str(value)):
            raise CaseError(f"{value!r} became {flag!r}")


# ---- files ----

_KINDS = ("pipe", "folder", "socket", "device", "loop", "missing", "link to a pipe")
_LOADERS: dict[str, Callable[[Path], Any]] = {
    "a.program": systolic.load_program,
    "a.json": load_constants,
    "b.json": read_trials_file,
    "a.sqlite": lambda path: TrialStore(path).subjects(),
    "a.csv": read_published,
    "a.npy": lambda path: named_argument(str(path)),
    "a.py": lambda path: check_function_name(f"{path}:f"),
}
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("compare", "a", "a"),
    ("plan", "--spec", "a"),
    ("simulate", "--program", "a"),
    ("validate", "a"),
    ("table", "import", "a", "--store", "mine.sqlite"),
    ("table", "show", "--store", "a"),
    ("bench", "512,512,512", "--published", "a"),
    ("check", "a.py:f"),
)


def _special_files(choose: random.Random, folder: Path, _setting: Setting) -> None:
    kind = choose.choice(_KINDS)
    start_s = time.monotonic()
    with contextlib.chdir(folder):
        if choose.random() < 0.5:
            name = choose.choice(list(_LOADERS))
            _make(kind, folder / name)
            try:
                _LOADERS[name](folder / name)
            except (ValueError, RuntimeError) as error:
                _check_line(str(error))
            else:
                if (kind, name) != ("missing", "a.sqlite"):  # a store without trials
                    raise CaseError(f"a {kind} was read as {name}")
        else:
            command = choose.choice(_COMMANDS)
            _make(kind, folder / ("a.py" if "a.py:f" in command else "a"))
            if (kind, command[:2]) == ("missing", ("table", "show")):
                return
            _refused(*command)
    if time.monotonic() - start_s > _LONGEST_S:
        raise CaseError(f"{time.monotonic() - start_s:.0f} s to refuse a {kind}")


def _make(kind: str, path: Path) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as opened:
                opened.bind(path.name)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "link to a pipe":
            os.mkfifo(path.with_name("pipe"))
            path.symlink_to("pipe")
        case _:
            pass


# ---- what a user sees ----


def _refused(*arguments: str) -> None:
    """Run a command that must end with exit code 2 and one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    if code != 2:
        raise CaseError(f"{' '.join(arguments)[:200]} ends with exit code {code}: {err.getvalue()[:200]}")
    _check_line(err.getvalue().strip("\n"))


def _check_line(text: str) -> None:
    if not text or len(text.splitlines()) != 1 or len(text) > 2000:
        raise CaseError(f"an error is one line, and not {text[:300]!r}")


SECTIONS = (
    Section(name="arguments", tries="hostile --arg, --param, --over, --mesh, --xla-flag", share=8, attempt=_arguments),
    Section(name="special-files", tries="pipes, folders, devices for every loader", share=4, attempt=_special_files),
)
