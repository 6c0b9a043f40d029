"""Read and empty the folder into which libtpu writes its listings."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from systolic.compiler.errors import CompilerError
from systolic.compiler.shared_code import representatives

TOP_LEVEL = "TLP"
# Mosaic writes the line of the source behind each instruction, where a kernel comes with lines. Nothing else changes.
SOURCE_LINES_FLAG = "--xla_mosaic_enable_llo_source_annotations=true"

# <time stamp>-<name>-<number>-final_bundles.txt. A name may hold dots, dashes, underscores and digits, so it is bounded
# by the two numbers; `…-<number>-schedule-analysis_final_bundles.txt`, which only totals, does not match.
_LISTING_FILE = re.compile(r"\d+-(?P<name>.+)-\d+-final_bundles\.txt")
_STAMP = re.compile(r"\d+")
_UTILIZATION_FILE = re.compile(r"\d+-(?P<name>.+)-\d+-final_hlo-static-per-bundle-utilization\.txt")
_VMEM_FILE = re.compile(rf"\d+-{TOP_LEVEL}-\d+-vmem_report\.html")
# The report is a web page that draws the JSON that is in it.
_VMEM_DATA = re.compile(r"\bconst DATA ?= ?(?=\{)")
_HLO_FILE = re.compile(rf"\d+-{TOP_LEVEL}-hlo\.txt")
_SPARSE_FILE = re.compile(r"(?P<name>.+)_(?P<stamp>\d+)_bundles\.txt")
# Where SparseCores' programs go. libtpu does not make the folder.
_SPARSE_FOLDER = "sparse"
# The set-up before the first SparseCore program and the clean-up after the last one have the same name.
_SPARSE_START = "sc-start."
_CUT_NAME = re.compile(r"(?P<start>.{100,})-\d{10,20}")
_CALL = re.compile(r"= (?:inlined_)?call\b[^/=\n]*/\* %(?P<name>\S+)")

# Equal operations share their code, and the compiler lists one of them. With this option it compiles and lists each.
ALL_LISTED = {"xla_jf_hlo_deduplication_all_unique": "true"}


class MissingListingError(CompilerError):
    """A called operation has no listing, and equals none that has one."""


def dump_flags(folder: Path) -> tuple[str, ...]:
    """Return the flags with which libtpu writes its listings to `folder`. They do not change the program.

    Raises:
        CompilerError: the path has white space in it, which libtpu takes for the end of a flag.
    """
    if re.search(r"\s", str(folder)):
        raise CompilerError(f"libtpu cannot write to a folder with white space in its path: {folder} (set TMPDIR)")
    return (
        f"--xla_jf_dump_to={folder}",
        "--xla_jf_dump_llo_text=true",
        "--xla_jf_dump_llo_pass_label_regex=.*(final_bundles|final_hlo).*",
        f"--xla_sc_dump_bundles_to={folder / _SPARSE_FOLDER}",
        SOURCE_LINES_FLAG,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """The files of one compilation."""

    listings: dict[str, str]  # the final instruction listing of every part, by name
    utilization: dict[str, str]  # for each of them, how many instructions every bundle issues on which unit
    top_level_hlo: str  # the scheduled HLO
    vmem_report: str  # the contents of VMEM, operation by operation, as JSON; "" if the compiler left none
    # The final listing of every program of the SparseCores, by name, in the order in which they were compiled.
    sparse_listings: dict[str, str]


def read_dump(folder: Path) -> Dump:
    """Read the files of one compilation in `folder`.

    Raises:
        MissingListingError: a called operation has no listing.
        CompilerError: no top-level program, more than one, or a file that cannot be read.
    """
    listings: dict[str, str] = {}
    utilization: dict[str, str] = {}
    hlo: list[str] = []
    vmem_report = ""
    for file in sorted(folder.iterdir(), key=_age):
        if match := _LISTING_FILE.fullmatch(file.name):
            name = match["name"]
            if name.startswith("<late-"):
                continue
            if name == TOP_LEVEL and name in listings:
                raise CompilerError(f"the compiler left two listings of {name!r}: more than one program was compiled")
            # An operation that does not fit at first is compiled again: the newer one is in the program.
            listings[name] = _text(file)
        elif match := _UTILIZATION_FILE.fullmatch(file.name):
            utilization[match["name"]] = _text(file)
        elif _HLO_FILE.fullmatch(file.name):
            hlo.append(_text(file))
        elif _VMEM_FILE.fullmatch(file.name):
            vmem_report = _vmem_data(_text(file))
    if TOP_LEVEL not in listings or not hlo:
        raise CompilerError(
            "the compiler left no listing of the top-level program: the function has nothing to run on the chip "
            "(its result does not depend on its arguments), or this libtpu does not know the dump flags"
        )
    if len(hlo) > 1:
        raise CompilerError(f"the compiler left {len(hlo)} top-level programs where one was compiled")
    for name, cut in _cut_names(listings, _called(listings) - listings.keys()).items():
        for texts in (listings, utilization):
            if cut in texts:
                texts[name] = texts.pop(cut)
    for name, other in representatives(listings, _called(listings), hlo[0]).items():
        for texts in (listings, utilization):
            if other in texts:
                texts[name] = texts[other]
    if missing := _called(listings) - listings.keys():
        raise MissingListingError(f"the compiler left no listing of the called operations {', '.join(sorted(missing))}")
    return Dump(
        listings=listings,
        utilization={name: text for name, text in utilization.items() if name in listings},
        top_level_hlo=hlo[0],
        vmem_report=vmem_report,
        sparse_listings=_sparse_listings(folder / _SPARSE_FOLDER),
    )


def _sparse_listings(folder: Path) -> dict[str, str]:
    listings: dict[str, str] = {}
    files = [(_SPARSE_FILE.fullmatch(file.name), file) for file in folder.iterdir()] if folder.is_dir() else []
    stamped = sorted((int(match["stamp"]), match["name"], file) for match, file in files if match is not None)
    for _, name, file in stamped:
        # Anything else that is there twice was compiled again, and the later one is the program's.
        key = f"{name} again" if name.startswith(_SPARSE_START) and name in listings else name
        listings[key] = _text(file)
    return listings


def empty_dump(folder: Path) -> None:
    """Remove everything in `folder`, which is made if it is not there, and what libtpu expects in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    (folder / _SPARSE_FOLDER).mkdir(exist_ok=True)


def _age(file: Path) -> tuple[int, str]:
    """Order files by the time stamp that begins their names."""
    stamp = _STAMP.match(file.name)
    return int(stamp.group()) if stamp else 0, file.name


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CompilerError(f"what the compiler left cannot be read: {error}") from error


def _vmem_data(page: str) -> str:
    match = _VMEM_DATA.search(page)
    if match is None:
        return ""
    try:
        data, _ = json.JSONDecoder().raw_decode(page, match.end())
        return json.dumps(data.get("hlo_breakdowns", {}) if isinstance(data, dict) else {})
    except (ValueError, RecursionError):
        return ""


def _cut_names(listings: Mapping[str, str], missing: Iterable[str]) -> dict[str, str]:
    """Return the file's name of each operation whose name is too long for one.

    A file name has room for about 180 characters of an operation's name; a hash replaces the rest.
    """
    cut: dict[str, list[str]] = {}
    for key in listings:
        if (match := _CUT_NAME.fullmatch(key)) is not None:
            cut.setdefault(match["start"], []).append(key)
    names = {start: [name for name in missing if name.startswith(start)] for start in cut}
    return {names[start][0]: keys[0] for start, keys in cut.items() if len(keys) == len(names[start]) == 1}


def _called(listings: Mapping[str, str]) -> set[str]:
    return {match["name"] for text in listings.values() for match in _CALL.finditer(text)}
