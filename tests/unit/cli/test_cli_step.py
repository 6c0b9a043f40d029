"""`systolic step` refuses calls that cannot be meant, before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from systolic.chips import chip
from systolic.cli import main
from systolic.cli.step_output import AskedStep, StepAnswer, step_record
from systolic.steps import DoesNotFitError, Step
from systolic.timing.outcome import Outcome

MAKER = f"{Path(__file__).parents[3] / 'examples' / 'transformer'}:train"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.py:make"], "nowhere.py"),
        ([f"{MAKER}ing"], "train"),  # a name that is nearly there
        ([MAKER, "--mesh", "fsdp=4"], "--topology"),
        ([MAKER, "--topology", "2x2", "--mesh", "fsdp=3"], "fsdp=3"),
        ([MAKER, "--try", "remat"], "remat"),
        ([MAKER, "--try", "remat=full", "--arg", "bf16[8,8]"], "--arg"),
        ([MAKER, "--batch", "0"], "--batch"),
    ],
)
def test_wrong_calls(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", *arguments, "--chip", "v6e", "-q"]) == 2
    assert said in capsys.readouterr().err


def test_the_record_of_a_step_that_does_not_fit_has_its_need() -> None:
    asked = AskedStep(label="large", chip=chip("v6e"), topology=None, source=Step(fn=abs, args=()))
    refused = Outcome.failed("large", DoesNotFitError(40, 32, 8))
    record = step_record(StepAnswer(step=asked, run=None, outcome=refused), {})
    assert (record["hbm_needed_bytes"], record["hbm_left_bytes"]) == (40, -8)
