"""Tables in the forms that `--format` names, and on terminals that are too narrow for them."""

from __future__ import annotations

import csv
import io

import click
import pytest
from rich.console import Console

from systolic.cli.complaints import complain
from systolic.cli.main import cli
from systolic.cli.tables import TableFormat, choose_format, console, say, show_table
from systolic.report.columns import Column, numeric, textual

Row = tuple[str, float, str]
COLUMNS: tuple[Column[Row], ...] = (
    textual("case", lambda row: row[0]),
    numeric("µs", lambda row: row[1], ".1f"),
    textual("why", lambda row: row[2]),
)
ROWS: list[Row] = [("a|b, c", 1.25, "first"), ("d", 2.0, "second")]


def written(form: TableFormat, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    with click.Context(cli) as context:
        choose_format(context, form)
        out = console()
        out.print("[bold]said[/]")
        say("beside")
        show_table(out, COLUMNS, ROWS)
    done = capsys.readouterr()
    return done.out, done.err


def test_csv_is_all_of_standard_output_and_not_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = written("csv", capsys)
    assert list(csv.reader(io.StringIO(out.strip()))) == [
        ["case", "µs", "why"],
        ["a|b, c", "1.25", "first"],
        ["d", "2.0", "second"],
    ]
    assert "said" in err
    assert "beside" in err


def test_markdown_escapes_what_would_end_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = written("markdown", capsys)
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert table == [
        "| case | µs | why |",
        "| --- | ---: | --- |",
        "| a\\|b, c | 1.2 | first |",
        "| d | 2.0 | second |",
    ]


def test_a_table_that_cannot_fit_is_turned_and_keeps_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    out = Console(width=18, force_terminal=True, color_system=None, highlight=False)
    show_table(out, COLUMNS, ROWS)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "case a|b, c" in lines
    assert "µs 2.0" in lines


def test_long_words_are_folded_before_a_table_is_turned(capsys: pytest.CaptureFixture[str]) -> None:
    out = Console(width=40, force_terminal=True, color_system=None, highlight=False)
    show_table(out, COLUMNS, [("a", 1.0, "preferred_element_type=acc_vmem.dtype")])
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["case", "µs", "why"]
    assert first.split()[:2] == ["a", "1.0"]


def test_the_first_column_stays_whole(capsys: pytest.CaptureFixture[str]) -> None:
    name = "llama3-8b up 2048 rows"
    out = Console(width=60, force_terminal=True, color_system=None, highlight=False)
    show_table(out, COLUMNS, [(name, 1.0, "a reason of many words " * 5)])
    assert name in capsys.readouterr().out


def test_columns_that_may_be_dropped_give_way_before_a_long_first_column_is_folded_to_a_few_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "tiles 256/512/512, manual DMA, 2 stages, grid order m, 2 fill chunks"
    figures: list[Column[Row]] = [numeric(f"figure number {at}", lambda row: row[1], droppable=True) for at in range(3)]
    out = Console(width=80, force_terminal=True, color_system=None, highlight=False)
    show_table(out, (*COLUMNS, *figures), [(name, 1.0, "copies")])
    _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("tiles 256/512/512, manual DMA, 2 ")
    assert second.startswith("stages, grid order m, 2 fill")


@pytest.mark.parametrize("form", ["markdown", "csv"])
def test_plans_are_a_table(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["plan", "512,512,512", "--chip", "v5e,v6e", "--format", form], standalone_mode=False)
    out = capsys.readouterr().out
    assert len(out.strip().splitlines()) == (3 if form == "csv" else 4)


def test_json_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["plan", "512,512,512", "--format", "json"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("{")


def test_a_table_in_a_file_is_as_wide_as_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = [1.5e6 + at for at in range(30)]
    columns: list[Column[list[float]]] = [
        numeric(f"column {at}", lambda row, at=at: row[at], ",.1f") for at in range(len(numbers))
    ]
    show_table(console(), columns, [numbers])
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2
    assert all(f"{number:,.1f}" in out for number in numbers)


class Terminal(io.StringIO):
    """A terminal that has no columns of its own: the environment says how many."""

    def isatty(self) -> bool:
        return True


LONG = "times are simulated: compiled for the chip, executed on its model of the hardware"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_no_line_on_a_terminal_breaks_a_word(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys." + stream, terminal)
    monkeypatch.setenv("COLUMNS", "41")
    monkeypatch.setenv("TERM", "xterm")
    if stream == "stdout":
        say(LONG)
        console().print(LONG, soft_wrap=True)
    else:
        complain(LONG)
        complain(LONG)
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 41
    assert " ".join(line.strip() for line in lines) == f"{LONG} {LONG}"


def test_a_folded_rule_is_indented_to_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "36")
    monkeypatch.setenv("TERM", "xterm")
    console().print("  [dim]rule[/] every element of an input counts")
    assert [line.rstrip() for line in click.unstyle(terminal.getvalue()).splitlines()] == [
        "  rule every element of an input",
        "       counts",
    ]


def test_a_column_is_not_folded_inside_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    out = Console(width=40, force_terminal=True, color_system=None, highlight=False)
    show_table(out, COLUMNS, [("rows of a product", 1.0, "convolution_fusion and tanh")])
    assert "convolution_fusion" in capsys.readouterr().out
