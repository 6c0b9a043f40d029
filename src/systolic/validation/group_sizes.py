"""The group sizes of published ragged products: drawn at random as their source drew them, or named in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from systolic.support.printable import printable
from systolic.support.regular_file import read_regular
from systolic.support.untrusted import UntrustedError, read_json, shown

_DRAWN = "rng"
_MAX_GROUPS, _MAX_ROWS = 2**16, 2**26  # far above every published product, and drawn in a second


class GroupSizesError(ValueError):
    """Group sizes that are not known, or do not suit their row."""


def drawn_sizes(*, groups: int, rows: int) -> tuple[int, ...]:
    """Return the sizes of groups into which `rows` rows fall at random, by NumPy's seed 0.

    Raises:
      GroupSizesError: there is no group, or more groups or rows than any published product has.
    """
    if not 0 < groups <= _MAX_GROUPS or not 0 <= rows <= _MAX_ROWS:
        raise GroupSizesError(
            f"{rows} rows in {groups} groups: there are 1 to {_MAX_GROUPS}, of {_MAX_ROWS} rows at most"
        )
    chosen = np.random.default_rng(0).choice(groups, (rows,))
    return tuple(np.bincount(chosen, minlength=groups).tolist())


@dataclass(frozen=True)
class GroupSizes:
    """Lists of group sizes by name, of a file that is read on first use."""

    path: Path

    def named(self, name: str, *, groups: int, rows: int) -> tuple[int, ...]:
        """Return the sizes of that name. "rng" are `rows` rows that fall into groups at random, by NumPy's seed 0.

        Raises:
          GroupSizesError: there are no such sizes, or their number of groups or rows differs.
        """
        if name == _DRAWN:
            return drawn_sizes(groups=groups, rows=rows)
        sizes = self._lists.get(name)
        if sizes is None:
            raise GroupSizesError(f"group_sizes={shown(name)} is neither {_DRAWN} nor named in {self._file}")
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            raise GroupSizesError(f"group_sizes={shown(name)} of {self._file} is not a list of whole numbers from 0 up")
        if len(sizes) != groups or sum(sizes) > rows:
            raise GroupSizesError(
                f"group_sizes={shown(name)} of {self._file} are {len(sizes)} groups of {sum(sizes)} rows; the row of "
                f"published times has {groups} groups of {rows} rows: name a list of {groups} sizes that add up to "
                f"{rows} at most"
            )
        return tuple(sizes)

    @property
    def _file(self) -> str:
        return printable(self.path.name)

    @cached_property
    def _lists(self) -> Mapping[str, Any]:
        try:
            data = read_json(read_regular(self.path))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise GroupSizesError(f"cannot read {self._file}: {error.strerror}") from error
        except UntrustedError as error:
            raise GroupSizesError(f"{self._file} is {error}") from error
        if not isinstance(data, dict):
            raise GroupSizesError(f"{self._file} holds no object with a list for each name")
        return data
