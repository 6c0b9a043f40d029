"""Wrong calls of `systolic simulate`: one line, exit code 2, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from systolic.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing argument"),
        (["nowhere.py:f"], "there is no file nowhere.py"),
        (["math"], "names no function"),
        (["math:sqrt", "--chip", "v9"], "v9"),
        (["math:sqrt", "--workers", "0"], "workers"),
        (["math:sqrt", "--chip", "v5e@p7"], "v5e"),
        (["math:sqrt", "--xla-flag", "fast"], "NAME=VALUE"),
        (["math:sqrt", "--xla-flag", "vmem=1"], "'vmem'"),
        (["math:sqrt", "--chip", "v7x", "--xla-flag", "xla_tpu_dvfs_p_state=7"], "v7x@p7"),
        (["math:sqrt", "--against", "gone.py:f"], "there is no file gone.py"),
    ],
)
def test_a_wrong_call(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err


def test_a_place_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "math:sqrt", "--json", str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err


def test_constants_of_another_chip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"chip": "v6e", "constants": {"dma_wait_cycles": 3}, "fitted_on": [], "source": "mine"}')
    assert main(["simulate", "math:sqrt", "--chip", "v5e", "--constants", str(path)]) == 2
    assert "holds constants of v6e" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--help"]) == 0
    assert "systolic simulate jax.numpy:matmul" in capsys.readouterr().out
