"""Wrong calls of `systolic explain` about slices: one line, exit code 2, and nothing is started."""

from __future__ import annotations

import pytest

from systolic.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--try-mesh"], "--topology"),
        (["--mesh", "data=8"], "--topology"),
        (["--topology", "2x2x2"], "2 dimensions"),
        (["--topology", "2x4", "--mesh", "data=3"], "data=3"),
    ],
)
def test_a_wrong_call(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "math:sqrt", "--chip", "v6e", *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err
