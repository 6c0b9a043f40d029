from __future__ import annotations

import click
import pytest

from systolic.chips import chip
from systolic.cli.main import main
from systolic.cli.slice_options import AskedSlice
from systolic.cli.step_choices import GridType, PricesType, changes_of, label_of, slice_for

MAKER = "examples/transformer:train"


def test_a_grid_is_all_combinations_and_replaces_the_step_itself() -> None:
    grids = [GridType().read("remat=full|minimal"), GridType().read("mesh=fsdp=8|fsdp=4,tensor=2")]
    assert changes_of([("batch", 2), ("batch", 2)], grids) == [
        (("remat", "full"), ("mesh", "fsdp=8")),
        (("remat", "full"), ("mesh", "fsdp=4,tensor=2")),
        (("remat", "minimal"), ("mesh", "fsdp=8")),
        (("remat", "minimal"), ("mesh", "fsdp=4,tensor=2")),
        (("batch", 2),),
    ]
    assert changes_of([("batch", 2)], []) == [(), (("batch", 2),)]
    assert label_of((("remat", "full"), ("mesh", "fsdp=8"))) == "remat=full mesh=fsdp=8"


def test_values_of_a_grid_are_python_where_they_can_be() -> None:
    assert GridType().read("batch=1| 2") == (("batch", 1), ("batch", 2))


@pytest.mark.parametrize("text", ["batch", "batch=", "batch=1|", "2=1|3"])
def test_no_grid(text: str) -> None:
    with pytest.raises(click.BadParameter):
        GridType().read(text)


def test_prices_and_a_slice_by_the_name_of_a_chip_or_its_generation() -> None:
    assert PricesType().read("v6e=2.7, v5p=4") == {"v6e": 2.7, "v5p": 4.0}
    asked = AskedSlice(topology="v6e=2x4,v7x=2x2x1", mesh="")
    assert slice_for(asked, chip("v7x@p7")).topology == "2x2x1"
    assert slice_for(AskedSlice(topology="2x4", mesh=""), chip("v6e")).topology == "2x4"
    with pytest.raises(click.UsageError, match="no slice of v5p: add v5p=…; it has v6e, v7x"):
        slice_for(asked, chip("v5p"))


@pytest.mark.parametrize("text", ["v6e", "v6e=", "v6e=cheap", "v6e=-1", "v6e=nan", "=2"])
def test_no_price(text: str) -> None:
    with pytest.raises(click.BadParameter):
        PricesType().read(text)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--price", "v6e=free"], "not a price"),
        (["--grid", "remat"], "not values"),
        (["--price", "v6=2.7"], "not among --chip v6e"),
        (["--topology", "v5p=2x2x1"], "no slice of v6e"),
        (["--topology", "v6e=2x2", "--grid", "mesh=fsdp=3|fsdp=4"], "fsdp=3"),
    ],
)
def test_wrong_calls(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", MAKER, *arguments, "--chip", "v6e", "-q"]) == 2
    assert said in capsys.readouterr().err
