"""Block masks and sparse matrices from hostile arguments: each is a named error, or the right matrix."""

from __future__ import annotations

import fractions
import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from fault_cases import CaseError, Setting

from systolic import BlockMask, BlockSparse, sparse_matmul
from systolic.spec import SpecError

_MAX_ELEMENTS = 10_000  # of a matrix that is multiplied
_HOSTILE: list[Any] = [None, "ab", b"", 1, 1.5, True, float("nan"), object, [], [[]], {}, (1, 2, 3), range(2), 2**40]
_HOSTILE += [np.float32(3), np.array(["a", "b"]), np.array([None, 1]), np.zeros((0,)), np.array(1), np.array([[1]])]
_HOSTILE += [jax.ShapeDtypeStruct((2,), jnp.int32), fractions.Fraction(4), 10**5000, 1j]
_INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"]


def attempt_record(choose: random.Random, _folder: Path, _setting: Setting) -> None:
    """Make a record, and multiply with it.

    Raises:
      CaseError: the record is wrong, or what is multiplied by it.
    """
    attempt = choose.choice([_constructed, _constructed, _constructed, _traced, _traced, _made])
    try:
        attempt(choose)
    except SpecError as error:
        if "\n" in str(error) or not str(error):
            raise CaseError(f"not one line: {error}") from error


def _places(choose: random.Random, grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Return different places in any order, and padding."""
    all_places = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    chosen = choose.sample(all_places, choose.randrange(len(all_places) + 1))
    chosen += [(grid[0], choose.randrange(5))] * choose.choice([0, 0, 1, 2])
    choose.shuffle(chosen)
    return chosen


def _drawn(choose: random.Random) -> tuple[list[tuple[int, int]], tuple[int, int], tuple[int, int]]:
    grid = (choose.randrange(5), choose.randrange(5))
    return _places(choose, grid), grid, (choose.choice([1, 2, 3]), choose.choice([1, 2, 3]))


def _damaged(places: list[tuple[int, int]], choose: random.Random) -> list[tuple[int, int]]:
    """Return places, some of them outside or repeated."""
    places = list(places)
    for _ in range(choose.choice([0, 1, 1, 3])):
        row, column = choose.choice([-1, -9, 0, 1, 4, 9, 120]), choose.choice([-1, -9, 0, 1, 4, 9, 120])
        places.insert(choose.randrange(len(places) + 1), choose.choice([(row, column), *places]))
    return places


def _columns(places: list[tuple[int, int]], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.array(places, np.int64).reshape(-1, 2).T
    return rows.astype(dtype), columns.astype(dtype)


def _blocks(choose: random.Random, number: int, block: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(choose.randrange(2**32)).integers(1, 9, (number, *block)).astype("float32")


def _whole(
    places: list[tuple[int, int]], blocks: np.ndarray, grid: tuple[int, int], block: tuple[int, int]
) -> np.ndarray:
    """Return the whole matrix, with the first block at each place."""
    dense = np.zeros((grid[0] * block[0], grid[1] * block[1]), "float32")
    for (row, column), content in reversed(list(zip(places, blocks, strict=True))):
        if 0 <= row < grid[0] and 0 <= column < grid[1]:
            dense[row * block[0] :, column * block[1] :][: block[0], : block[1]] = content
    return dense


def _is_valid(places: list[tuple[int, int]], grid: tuple[int, int]) -> bool:
    blocks = [(row, column) for row, column in places if row != grid[0]]
    inside = all(0 <= row < grid[0] and 0 <= column < grid[1] for row, column in blocks)
    return inside and len(set(blocks)) == len(blocks)


def _check_matrix(matrix: BlockSparse, dense: np.ndarray) -> None:
    sides = [np.arange(dense.shape[1] * 2, dtype="float32").reshape(-1, 2), np.ones((3, dense.shape[0]), "float32")]
    _check_equal(matrix.to_dense(), dense, "to_dense")
    _check_equal(matrix.T.to_dense(), dense.T, "T")
    _check_equal(sparse_matmul(matrix, sides[0], implementation="xla"), dense @ sides[0], "dsd")
    _check_equal(sparse_matmul(sides[1], matrix, implementation="xla"), sides[1] @ dense, "dds")


def _check_mask(mask: BlockMask, wanted: np.ndarray) -> None:
    rows, columns = np.indices(wanted.shape)
    diagonal = (columns - rows).astype(object)  # in addition to any int
    if mask.lower is not None:
        wanted = wanted & (diagonal >= mask.lower).astype(bool)
    if mask.upper is not None:
        wanted = wanted & (diagonal <= mask.upper).astype(bool)
    lhs, rhs = np.ones((wanted.shape[0], 1), "float32"), np.arange(1, wanted.shape[1] + 1, dtype="float32")[None]
    out = sparse_matmul(lhs, rhs, mask=mask, dense_out=True, implementation="xla")
    _check_equal(out, np.where(wanted, lhs @ rhs, 0), "a masked product")


def _check_equal(found: Any, expected: np.ndarray, name: str) -> None:
    found = np.asarray(found)
    if found.shape != expected.shape or not np.array_equal(found, expected):
        raise CaseError(f"{name} is wrong")


def _constructed(choose: random.Random) -> None:
    """Call both constructors with valid arguments, and make some of them invalid."""
    places, grid, block = _drawn(choose)
    if choose.random() < 0.4:
        places = _damaged(places, choose)
    dtype = choose.choice(_INTEGERS)
    rows, columns = _columns(places, dtype)
    places = list(zip(rows.tolist(), columns.tolist(), strict=True))  # as unsigned ones are
    shape = (grid[0] * block[0], grid[1] * block[1])
    is_mask = choose.random() < 0.6
    blocks = np.ones((len(rows), *block), "float32") if is_mask else _blocks(choose, len(rows), block)
    arguments: dict[str, Any] = {"rows": rows, "columns": columns, "shape": shape}
    if is_mask:
        limits = [None, 0, 1, -1, 2, -3, 2**40, -(2**40), 10**5000, np.int8(1)]
        arguments |= {"block": block, "lower": choose.choice(limits), "upper": choose.choice(limits)}
    else:
        arguments["blocks"] = blocks
    is_hostile = choose.random() < 0.5
    if is_hostile:
        _corrupt(arguments, choose)
    record = (BlockMask if is_mask else BlockSparse)(**arguments)
    if is_hostile:
        _check_fields(record)
        return
    if not _is_valid(places, grid):
        raise CaseError(f"{places} are taken for places of {grid}")
    if not (np.all(np.diff(np.asarray(record.rows, np.int64)) >= 0) and np.asarray(record.rows).dtype == np.int32):
        raise CaseError(f"rows are not sorted: {record.rows}")
    dense = _whole(places, blocks, grid, block)
    if isinstance(record, BlockMask):
        _check_mask(record, dense != 0)
    else:
        _check_matrix(record, dense)


def _corrupt(arguments: dict[str, Any], choose: random.Random) -> None:
    """Replace an argument, or an element of it."""
    name = choose.choice(list(arguments))
    value = arguments[name]
    if isinstance(value, tuple) and choose.random() < 0.6:
        changed = [*value]
        numbers = [-1, 0, 7, 2**31, 2**70, 10**5000, 1.0, float(value[0]), "8", None, True, np.int64(value[0])]
        changed[choose.randrange(2)] = choose.choice(numbers)
        arguments[name] = choose.choice([tuple, list])(changed)
    elif isinstance(value, np.ndarray) and choose.random() < 0.6:
        changes = [
            value.tolist(),
            value[1:],
            value[None],
            value.astype("float32"),
            value.astype(bool),
            value.T,
            value[0:0],
        ]
        changes += [np.array(value, object), value.astype("complex64"), jax.ShapeDtypeStruct(value.shape, value.dtype)]
        arguments[name] = choose.choice(changes)
    else:
        arguments[name] = choose.choice(_HOSTILE)


def _check_fields(record: Any) -> None:
    """Check that an accepted record can be multiplied and gives finite numbers."""
    (m, n), (rows, columns) = record.shape, record.block
    if not all(type(size) is int and size >= 0 for size in (m, n, rows, columns)) or m % rows or n % columns:
        raise CaseError(f"shape {record.shape} and block {record.block} were taken")
    if m * n > _MAX_ELEMENTS or record.rows.ndim > 1:
        return
    dense = jnp.ones((m, 1)), jnp.ones((1, n))
    if isinstance(record, BlockMask):
        out = sparse_matmul(*dense, mask=record, dense_out=True, implementation="xla")
    else:
        out = sparse_matmul(record, dense[1].T, implementation="xla")
        dense = (out, jnp.ones((1, out.shape[1])))
    if not np.all(np.isfinite(np.asarray(out, np.float64))):
        raise CaseError("a product is not finite")


def _traced(choose: random.Random) -> None:
    """Trace both constructors: they read nothing outside of the matrix, and the first of two equal places counts."""
    places, grid, block = _drawn(choose)
    places = _damaged(places, choose)
    signed = choose.choice(["int8", "int16", "int32"])
    rows, columns = _columns(places, signed)
    shape, blocks = (grid[0] * block[0], grid[1] * block[1]), _blocks(choose, len(places), block)
    matrix: Any = jax.jit(lambda blocks, rows, columns: BlockSparse(blocks, rows, columns, shape))(
        blocks, rows, columns
    )
    dense = _whole(places, blocks, grid, block)
    _check_matrix(matrix, dense)
    mask: Any = jax.jit(lambda rows, columns: BlockMask(rows, columns, shape, block))(rows, columns)
    _check_mask(mask, dense != 0)


def _made(choose: random.Random) -> None:
    """Make a record from a hostile value."""
    hostile = choose.choice(_HOSTILE)
    other = choose.choice([*_HOSTILE, (2, 2), (3, 2), (1, 1)])
    room: Any = choose.choice([None, None, 0, 1, 9, -1, 1.5, "2", 2**40])
    mask = choose.choice([hostile, np.eye(2, dtype=bool), np.eye(2), np.ones((2, 0), bool), np.ones((3, 2, 2), "int8")])
    number = choose.choice([hostile, None, 0, -1, 2**40, -(2**40)])
    dense = choose.choice([hostile, np.eye(4), np.ones((0, 4)), np.ones((2, 4, 4), "int8")])
    record: Any = choose.choice(
        [
            lambda: BlockMask.from_mask(mask, other, most_blocks=room),
            lambda: BlockMask.of(hostile),
            lambda: BlockMask.banded(choose.choice([hostile, (6, 6), (6, 0)]), other, number, None),
            lambda: BlockMask.causal(hostile, other),
            lambda: BlockSparse.from_dense(dense, other, most_blocks=room),
            lambda: BlockSparse.from_dense(np.ones((4, 4)), (2, 2), mask, most_blocks=room),
            lambda: BlockSparse.from_bcoo(hostile),
            lambda: BlockSparse.from_bsr(hostile),
            lambda: BlockSparse.from_dense(np.eye(4), (2, 2)).with_blocks(hostile),
        ]
    )()
    _check_fields(record)
