"""Published operations of several kinds and rows of tokamax' cache: their forms, flags, clock states and programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from systolic.lessons.published_ops import published_program
from systolic.validation.errors import chip_of, compared, program_or_reason, statistics_by_chip
from systolic.validation.published import PublishedFileError, PublishedRow, read_published
from systolic.validation.stated_flags import stated_flags

OPS = "source,chip,topology,kind,op,m,k,n,batch,dtype_lhs,dtype_rhs,dtype_out,shape_note,tiles,time_us,timing"
OPS += ",software,notes"
COPY = (
    "me,v7x,1 device,copy,a.copy() 1-D,,,4294967296,,bfloat16,,bfloat16,,,5351.18,bandwidth-derived,{software},{notes}"
)
PRODUCT = "me,v7x,1 device,matmul,dot_general,512,256,384,,bfloat16,bfloat16,bfloat16,,,9.5,device,{software},{notes}"
GROUPED = 'me,v6e,,grouped,{op},64,256,128,{batch},{dtype},{dtype},bfloat16,,"{tiles}",9.5,device,,'
SPLASH = 'me,v6e,,attention,"splash attention fwd, causal",1024,128,1024,{batch},bfloat16,,,,"{tiles}",9,device,,'
RAGGED = "chip,kind,m,k,n,groups,group_sizes,tile_m,tile_k,tile_n,input_buffer_count,time_us,date"
LINE = "v5p,{kind},64,256,128,4,{sizes},16,32,48,2,763.0,{date}"


def file_of(folder: Path, header: str, *lines: str, **groups: Any) -> Path:
    (folder / "t.csv").write_text("\n".join([header, *lines]) + "\n")
    if groups:
        (folder / "t_groups.json").write_text(json.dumps(groups))
    return folder / "t.csv"


def read(folder: Path, line: str, header: str = OPS, **values: str) -> PublishedRow:
    filled = line.format_map({"software": "", "notes": "", "batch": "", **values})
    return read_published(file_of(folder, header, filled))[0]


# --- flags and clock states ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("XLA: all features + scoped_vmem_limit_kib=65536 + dvfs_p_state=7; jax 0.8", {"vmem": "65536", "state": "7"}),
        ("scoped_vmem 65536 KiB, p_state 7, jf_bounds_check=false", {"vmem": "65536", "state": "7", "check": "false"}),
        ("median profiler event; scoped VMEM limit 64 MiB", {"vmem": "65536"}),
        ("p_state 7, scoped vmem 65536 KiB, jax 0.10-era", {"vmem": "65536", "state": "7"}),
        ("NO libtpu flags (default p_state, default scoped vmem)", {}),
        ("p_state 3 and p_state 7 compared", {}),
        ("100 runs; scoped vmem as it comes", {}),
    ],
)  # fmt: skip
def test_flags_that_a_source_states(text: str, found: dict[str, str]) -> None:
    names = {"vmem": "xla_tpu_scoped_vmem_limit_kib", "state": "xla_tpu_dvfs_p_state", "check": "xla_jf_bounds_check"}
    assert stated_flags(text) == {names[name]: value for name, value in found.items()}


def test_a_row_is_of_the_clock_state_that_its_source_states(tmp_path: Path) -> None:
    row = read(tmp_path, PRODUCT, software="scoped_vmem_limit_kib=65536 + dvfs_p_state=7")
    program = program_or_reason(row, published_program)
    found = compared(row, program, 19.0, dispatch_us=115)
    assert (found.chip, found.kind, found.op) == ("v7x@p7", "xla product", "dot_general")
    assert (found.counted, found.error) == (True, pytest.approx(1.0))
    assert found.program == "v7x@p7 xla 512/256/384 bfloat16×bfloat16→bfloat16 xla_tpu_scoped_vmem_limit_kib=65536"
    plain = compared(read(tmp_path, PRODUCT), program, 9.5, dispatch_us=115)
    other = replace(plain, chip="v7x")
    assert list(statistics_by_chip([found, other])) == ["v7x@p7", "v7x"]


def test_a_column_of_flags_comes_first(tmp_path: Path) -> None:
    row = read(tmp_path, PRODUCT + ",xla_tpu_rwb_fusion=false", OPS + ",flags", software="dvfs_p_state=7")
    assert row.flags == {"xla_tpu_rwb_fusion": "false"}
    assert chip_of(row).name == "v7x"


@pytest.mark.parametrize("flags", ["vmem=1", "xla_tpu_rwb_fusion", "xla_jf_dump_to=/tmp"])
def test_a_column_of_what_are_no_flags(tmp_path: Path, flags: str) -> None:
    with pytest.raises(PublishedFileError, match="line 2: flags="):
        read(tmp_path, PRODUCT + "," + flags, OPS + ",flags")


def test_a_clock_state_without_a_model_is_a_reason(tmp_path: Path) -> None:
    reason = program_or_reason(read(tmp_path, PRODUCT, software="p_state 5"), published_program)
    assert "xla_tpu_dvfs_p_state=5 is not the clock state of v7x" in str(reason)


def test_what_a_source_leaves_open_is_compared_and_not_counted(tmp_path: Path) -> None:
    row = read(tmp_path, PRODUCT, notes="which of the dims is k is not certain")
    found = compared(row, program_or_reason(row, published_program), 19.0, dispatch_us=0)
    assert (found.counted, found.error, found.left_open) == (False, 1.0, "which of the dims is k is not certain")


# --- kinds -----------------------------------------------------------------------------------------------------------


def test_a_copy(tmp_path: Path) -> None:
    row = read(tmp_path, COPY, software="dvfs_p_state=7")
    program = program_or_reason(row, published_program)
    assert not isinstance(program, str)
    assert (str(program), program.arguments[0].shape) == ("v7x@p7 copy 4294967296 bfloat16", (2**32,))
    assert (row.sizes, row.kind, compared(row, program, 1.0, dispatch_us=0).counted) == ("4294967296", "copy", True)
    assert program.function(np.arange(3.0)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "group_sizes, and the row lacks one of them"),
        ({"op": "megablox gmm_v2"}, "is not JAX's"),
        ({"tiles": "auto"}, "the row lacks one of them"),
        ({"dtype": "fp8"}, "the row lacks one of them"),
    ],
)
def test_a_grouped_product_that_cannot_be_made_anew(tmp_path: Path, values: dict[str, str], said: str) -> None:
    row = read(tmp_path, GROUPED, **{"op": "megablox gmm", "tiles": "(16,32,48)", "dtype": "bfloat16", **values})
    assert said in str(program_or_reason(row, published_program))


def test_a_grouped_product_with_its_sizes(tmp_path: Path) -> None:
    values = {"op": "megablox gmm (native)", "tiles": "(16, 32, 48)", "dtype": "bfloat16"}
    row = read(tmp_path, GROUPED + ",4,rng", OPS + ",groups,group_sizes", **values)
    program = program_or_reason(row, published_program)
    assert not isinstance(program, str)
    assert [each.shape for each in program.arguments] == [(64, 256), (4, 256, 128), (4,)]
    assert program.arguments[2].sum() == 64
    wrong = program_or_reason(replace(row, dtype_lhs="fp8"), published_program)
    assert wrong == "dtype 'fp8' is not known"


def test_attention(tmp_path: Path) -> None:
    row = read(tmp_path, SPLASH, batch="2 seqs x 8 q heads (4 kv)", tiles="block 512 (q,kv,kv_compute)")
    program = program_or_reason(row, published_program)
    assert not isinstance(program, str)
    assert [each.shape for each in program.arguments] == [(2, 8, 1024, 128), (2, 4, 1024, 128), (2, 4, 1024, 128)]
    unclear = program_or_reason(replace(row, batch="two"), published_program)
    assert "batch as in" in str(unclear)


def test_a_kind_that_is_not_known(tmp_path: Path) -> None:
    row = read(tmp_path, COPY.replace("copy,", "convolution,").replace("4294967296", "8"))
    assert "kind 'convolution' is unknown; choose from copy" in str(program_or_reason(row, published_program))


# --- rows of tokamax' cache ------------------------------------------------------------------------------------------


@pytest.fixture
def tokamax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systolic.validation.foreign.importlib.util.find_spec", lambda name: name)


def ragged(folder: Path, kind: str, sizes: str = "rng", date: str = "2026-07-21") -> PublishedRow:
    return read_published(
        file_of(folder, RAGGED, LINE.format(kind=kind, sizes=sizes, date=date), mine=[1, 0, 2, 61], short=[64])
    )[0]


@pytest.mark.parametrize(
    ("kind", "date", "rhs", "tiling"),
    [
        ("fwd", "2026-07-21", (4, 256, 128), (16, 32, 48)),
        ("dlhs", "2026-07-14", (4, 128, 256), (16, 48, 32)),
        ("dlhs", "2026-07-13", (4, 128, 256), (16, 32, 48)),
        ("drhs", "2026-07-21", (64, 128), (16, 32, 48)),
    ],
)
def test_a_ragged_row(
    tmp_path: Path, tokamax: None, kind: str, date: str, rhs: tuple[int, ...], tiling: tuple[int, ...]
) -> None:
    row = ragged(tmp_path, kind, date=date)
    program = program_or_reason(row, published_program)
    assert not isinstance(program, str)
    lhs, other, sizes = program.arguments
    assert (lhs.shape, other.shape) == ((64, 256), rhs)
    assert program.function.keywords == {"tiling": tiling, "buffers": 2}  # pyright: ignore[reportFunctionMemberAccess]
    drawn = np.random.default_rng(0).choice(4, (64,))
    assert sizes.tolist() == [int((drawn == group).sum()) for group in range(4)]
    found = compared(row, program, 763.0, dispatch_us=115)
    assert (found.kind, found.counted, found.in_view, found.error) == (f"ragged {kind}", True, True, 0)


def test_group_sizes_of_a_file(tmp_path: Path, tokamax: None) -> None:
    program, drawn = (program_or_reason(ragged(tmp_path, "fwd", sizes), published_program) for sizes in ("mine", "rng"))
    assert not isinstance(program, str)
    assert program.arguments[2].tolist() == [1, 0, 2, 61]
    assert program != drawn


def test_without_tokamax_the_row_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("systolic.validation.foreign.importlib.util.find_spec", lambda _: None)
    assert "pip install tokamax" in str(program_or_reason(ragged(tmp_path, "fwd"), published_program))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (LINE.format(kind="fwd", sizes="theirs", date=""), "line 2: group_sizes='theirs' is neither rng nor named"),
        (LINE.format(kind="fwd", sizes="short", date=""), "name a list of 4 sizes that add up to 64 at most"),
        (LINE.format(kind="fwd", sizes="odd", date=""), "'odd' of t_groups.json is not a list of whole numbers"),
        (LINE.format(kind="fwd", sizes="rng", date="").replace(",4,", ",0,"), "line 2: groups='0'"),
        (LINE.format(kind="fwd", sizes="rng", date="").replace(",4,", ",2000000,"), "64 rows in 2000000 groups"),
        (LINE.format(kind="fwd", sizes="rng", date="").replace(",2,", ",,"), "line 2: input_buffer_count=''"),
    ],
)
def test_a_wrong_ragged_row_names_line_and_value(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(PublishedFileError, match=said):
        read_published(file_of(tmp_path, RAGGED, line, short=[64], odd=[True, 1]))


@pytest.mark.parametrize("held", ["{", "[]", '{"a": [1], "a": [2]}'])
def test_a_damaged_file_of_group_sizes_is_named(tmp_path: Path, held: str) -> None:
    file = file_of(tmp_path, RAGGED, LINE.format(kind="fwd", sizes="mine", date=""))
    (tmp_path / "t_groups.json").write_text(held)
    with pytest.raises(PublishedFileError, match=r"line 2: t_groups.json"):
        read_published(file)


def test_a_missing_column_of_each_form(tmp_path: Path) -> None:
    for header, missing in ((OPS.replace("timing,", ""), "timing"), (RAGGED.replace("groups,", ""), "groups")):
        with pytest.raises(PublishedFileError, match=f"no column {missing}"):
            read_published(file_of(tmp_path, header))
