from pathlib import Path

import pytest

from systolic.compiler import CompilerError
from systolic.compiler.dump import dump_flags, empty_dump, read_dump

CALLS = (
    "   0xa   :  { %177 = inlined_call /* <late-initialization> */ } /* Start region 26 */\n"
    "  0x75   :  { %32 = inlined_call %s12_s0, %s13_s1 /* %mm.1 = custom-call(%x.1, %y.1) */  ;;  %31 = nop }\n"
    "  0x79   :  { %s8_s0 = inlined_call_operand.hbm [shape: f32[8]] /* %z = window */ }\n"
)


def leave(folder, name, text, *, number=2, stamp=17):
    (folder / f"{stamp}-{name}-{number:02}-final_bundles.txt").write_text(text)


@pytest.fixture
def dump(tmp_path):
    leave(tmp_path, "TLP", CALLS)
    (tmp_path / "17-TLP-hlo.txt").write_text("HloModule m")
    leave(tmp_path, "<late-initialization>", "init")
    leave(tmp_path, "<late-finalization>", "final")
    leave(tmp_path, "mm.1", "matmul")
    (tmp_path / "17-mm.1-01-schedule-analysis_final_bundles.txt").write_text("totals")
    (tmp_path / "17-TLP-03-vmem_report.html").write_text(
        '<script>const DATA ={"global_info": {}, "hlo_breakdowns": {"mm.1": {"total_size": 7}}};</script>'
    )
    (tmp_path / "17-mm.1-00-final_hlo-static-per-bundle-utilization.txt").write_text("table")
    return tmp_path


def test_listings_are_found_by_operation(dump):
    found = read_dump(dump)
    assert found.listings == {"TLP": CALLS, "mm.1": "matmul"}
    assert found.top_level_hlo == "HloModule m"
    assert found.utilization == {"mm.1": "table"}
    assert found.vmem_report == '{"mm.1": {"total_size": 7}}'


@pytest.mark.parametrize("page", ["map", "const DATA ={", "const DATA =7;"])
def test_a_vmem_report_of_another_form_is_left_out(dump, page):
    (dump / "17-TLP-03-vmem_report.html").write_text(page)
    assert read_dump(dump).vmem_report == ""


@pytest.mark.parametrize("name", ["a-01-b", "reduce_sum.0.clone", "custom-call.2", "x-12-final_bundles.txt-3", "7"])
def test_awkward_names_are_whole(dump, name):
    leave(dump, name, "text", number=10)
    assert read_dump(dump).listings[name] == "text"


def test_a_name_that_was_cut_is_restored(dump):
    name = "n" * 300 + ".1"
    leave(dump, "TLP", CALLS.replace("%mm.1 =", f"%{name} ="))
    leave(dump, "n" * 180 + "-17470904431438393130", "long")
    assert read_dump(dump).listings[name] == "long"


def test_an_operation_that_is_called_by_the_other_name_needs_a_listing_too(dump):
    leave(dump, "TLP", CALLS + "  0x80   :  { %339 = call %s0, %s1 /* %sort.2 = sort(%x) */ }\n")
    with pytest.raises(CompilerError, match=r"sort\.2"):
        read_dump(dump)


def test_of_an_operation_that_was_compiled_twice_the_newer_listing_counts(dump):
    for stamp in (9, 171):  # as numbers they are before and behind the one of 17
        leave(dump, "mm.1", f"matmul of {stamp}", number=1, stamp=stamp)
        (dump / f"{stamp}-mm.1-00-final_hlo-static-per-bundle-utilization.txt").write_text(f"table of {stamp}")
    found = read_dump(dump)
    assert found.listings["mm.1"] == "matmul of 171"
    assert found.utilization["mm.1"] == "table of 171"


def test_a_called_operation_without_listing_is_an_error(dump):
    (dump / "17-mm.1-02-final_bundles.txt").unlink()
    with pytest.raises(CompilerError, match=r"mm\.1"):
        read_dump(dump)


@pytest.mark.parametrize("lost", ["17-TLP-02-final_bundles.txt", "17-TLP-hlo.txt"])
def test_no_top_level_program_is_an_error(dump, lost):
    (dump / lost).unlink()
    with pytest.raises(CompilerError, match="top-level program"):
        read_dump(dump)


def test_sparse_core_listings_come_in_the_order_of_their_stamps(dump):
    folder = dump / "sparse"
    folder.mkdir(exist_ok=True)
    for name, stamp in (("sc-start.0", 12), ("gather.1", 13), ("sc-start.0", 11), ("take_start", 9), ("gather.1", 14)):
        (folder / f"{name}_{stamp}_bundles.txt").write_text(f"{name} at {stamp}")
    assert list(read_dump(dump).sparse_listings.items()) == [
        ("take_start", "take_start at 9"),
        ("sc-start.0", "sc-start.0 at 11"),
        ("sc-start.0 again", "sc-start.0 at 12"),
        ("gather.1", "gather.1 at 14"),
    ]


def test_the_compiler_is_told_where_sparse_core_listings_go(dump):
    empty_dump(dump)
    (told,) = (flag for flag in dump_flags(dump) if flag.startswith("--xla_sc_dump_bundles_to="))
    assert Path(told.partition("=")[2]).is_dir()


def test_two_programs_are_an_error(dump):
    leave(dump, "TLP", CALLS, stamp=18)
    with pytest.raises(CompilerError, match="two listings of 'TLP'"):
        read_dump(dump)


def test_emptying_takes_everything(dump):
    (dump / "sub").mkdir()
    (dump / "sub" / "file").write_text("x")
    empty_dump(dump)
    assert [path for path in dump.rglob("*") if path.is_file()] == []


def test_white_space_in_the_folder_is_refused(tmp_path):
    with pytest.raises(CompilerError, match="white space"):
        dump_flags(tmp_path / "a b")


def test_an_operation_has_the_listing_of_an_equal_one(dump):
    leave(dump, "TLP", CALLS + "  0x80   :  { %339 = call %s0, %s1 /* %mm.2 = custom-call(%x.2, %y.1) */ }\n")
    instruction = '  %mm.{0} = f32[8] custom-call(%x.{0}, %y.1), custom_call_target="tpu_custom_call"\n'
    operands = "".join(f"  %{name} = f32[8] parameter({n})\n" for n, name in enumerate(("x.1", "x.2", "y.1")))
    body = operands + instruction.format(1) + instruction.format(2)
    (dump / "17-TLP-hlo.txt").write_text("HloModule m\n\nENTRY %main (x: f32[8]) -> f32[8] {\n" + body + "}\n")
    found = read_dump(dump)
    assert found.listings["mm.2"] == found.listings["mm.1"] == "matmul"
    assert found.utilization["mm.2"] == "table"


def test_two_names_that_were_cut_alike_are_not_restored(dump):
    start = "n" * 180
    calls = "".join(CALLS.replace("%mm.1 =", f"%{start}.{number} =") for number in (1, 2))
    leave(dump, "TLP", calls)
    leave(dump, f"{start}-17470904431438393130", "long")
    with pytest.raises(CompilerError, match="no listing"):
        read_dump(dump)
