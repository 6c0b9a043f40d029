"""`systolic run`: wrong calls end before a worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from systolic.chips import chip
from systolic.cli.main import main
from systolic.cli.run_output import show_script
from systolic.running import ScriptRun, TimedProgram


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("missing.py", None, "cannot read missing.py: No such file"),
        ("data.json", "{}", "data.json is not a Python script"),
        ("wrong.py", "x = 1\ndef (", "wrong.py:2 is not Python: invalid syntax"),
        ("binary.py", "\0\1", "binary.py:1 is not Python"),
        (".", None, "it is a folder"),
    ],
)
def test_what_is_no_script_is_refused(
    name: str,
    text: str | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    assert main(["run", name, "--chip", "v6e"]) == 2
    assert words in capsys.readouterr().err


def test_an_option_of_the_script_needs_dashes_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text("")
    assert main(["run", str(tmp_path / "script.py"), "--steps", "3"]) == 2
    assert "Options of the script follow after --" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "script.py"), "--chip", "v5e,v6e"]) == 2
    assert "one chip at a time; give one of v5e, v6e" in capsys.readouterr().err


def test_no_json_is_written_into_a_file_for_xprof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text("")
    assert main(["run", str(tmp_path / "script.py"), "--trace", "calls.pb"]) == 2
    assert "name it calls.json" in capsys.readouterr().err


def test_the_end_says_what_has_no_time_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    lost = TimedProgram(
        name="step", arguments="f32[8]", calls=3, live_bytes=32, step=None, status="unknown", reason="a loop"
    )
    run = ScriptRun(
        chip="v5e",
        programs=(lost,),
        sequence=(0, 0, 0),
        capacity_bytes=1 << 34,
        live_bytes=32,
        largest=(),
        untimed={"add": 1, "mul": 2},
    )
    show_script(run, chip("v5e"))
    out = capsys.readouterr().out
    assert "in 0 of 3 calls, the others have no time; the host's time is not included" in out
    assert "no time: step(f32[8]): unknown: a loop" in out
    assert "ran on the CPU: add, mul; call them in a function of jax.jit to time them" in out
