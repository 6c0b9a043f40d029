"""Names of functions are checked before anything is imported, before a command starts a worker."""

from pathlib import Path

import pytest

from systolic.cli import main
from systolic.compiler import NamedFunction, NamedFunctionError, check_function_name

KERNELS = """
import os
from json import dumps
os._exit(9)  # nothing of this may run here

def tiled_matmul(x):
    return x

async def _hidden(x):
    return x

class Holder:
    def method(self):
        return self

plain = lambda x: x
first, (second, *rest) = plain, (plain, plain)
if os.environ.get("NEVER"):
    def in_a_branch(x):
        return x
try:
    with open(os.devnull) as handle:
        pass
except OSError:
    import sys as other
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    return file


@pytest.mark.parametrize(
    "name",
    ["tiled_matmul", "_hidden", "Holder.method", "plain", "second", "rest", "in_a_branch", "handle", "other", "dumps"],
)
def test_every_name_that_a_file_binds_is_known(kernels: Path, name: str) -> None:
    check_function_name(f"{kernels}:{name}")


def test_a_missing_function_is_named_beside_those_that_are_there(kernels: Path) -> None:
    with pytest.raises(NamedFunctionError) as caught:
        check_function_name(f"{kernels}:tiled_matmull")
    assert str(caught.value) == (
        f"{kernels} has no function 'tiled_matmull'; did you mean tiled_matmul? "
        "it has tiled_matmul, Holder, in_a_branch"
    )


@pytest.mark.parametrize(
    "text",
    [
        "from os.path import *\n",
        "def __getattr__(name):\n    return print\n",
        "globals()['made'] = print\n",
        "for name in 'ab':\n    exec(f'{name} = print')\n",
    ],
)
def test_a_file_that_makes_names_as_it_runs_is_left_to_the_worker(tmp_path: Path, text: str) -> None:
    (tmp_path / "made.py").write_text(text)
    check_function_name(f"{tmp_path / 'made.py'}:anything")


def test_modules_are_found_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "inner.py").write_text("def mine(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check_function_name("some_kernels.inner:mine")
    check_function_name("jax.numpy:matmul")
    check_function_name("os.path:join")
    check_function_name("math:sin")
    for text, words in (
        ("some_kernels.inner:yours", "has no function 'yours'; it has mine"),
        ("some_kernels.outer:mine", "there is no module some_kernels.outer"),
        ("no_such_package.inner:mine", "there is no module no_such_package.inner"),
        ("jax.numpy:matmull", "did you mean matmul"),
        ("..:mine", "there is no module"),
    ):
        with pytest.raises(NamedFunctionError, match=words):
            check_function_name(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x = 1\ndef f(:\n", ":2 is not Python: invalid syntax"),
        (b"\0", " is not Python: "),
        (b"\xff\xfe\xfd", " is not Python: "),
        (None, "there is no file"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "explain", "check"])
def test_a_command_says_so_at_once_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, content: bytes | None, words: str
) -> None:
    file = tmp_path / "broken.py"
    if content is not None:
        file.write_bytes(content)
    assert main([command, f"{file}:f", "--arg", "f32[8,128]"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert words in err


@pytest.mark.parametrize("option", [[], ["--reference"], ["--against"]])
def test_no_job_begins_for_a_function_that_is_not_there(
    kernels: Path, capfd: pytest.CaptureFixture[str], option: list[str]
) -> None:
    command = "simulate" if option == ["--against"] else "check"
    named = [f"{kernels}:tiled_matmul", *option, f"{kernels}:nosuch"] if option else [f"{kernels}:nosuch"]
    assert main([command, *named, "--arg", "f32[8,128]"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "has no function 'nosuch'" in err
    assert "jobs" not in err


def test_a_folder_that_is_a_package_holds_functions_too(tmp_path: Path) -> None:
    package = tmp_path / "model"
    package.mkdir()
    (package / "sizes.py").write_text("WIDTH = 7\n")
    (package / "__init__.py").write_text("from .sizes import WIDTH\n\ndef make():\n    return WIDTH\n")
    check_function_name(f"{package}:make")
    assert NamedFunction(f"{package}:make").load()() == 7
    with pytest.raises(NamedFunctionError, match="make"):
        check_function_name(f"{package}:male")
    with pytest.raises(NamedFunctionError):
        check_function_name(f"{tmp_path}:make")  # no package
