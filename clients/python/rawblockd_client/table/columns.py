"""The parts that each row of a table consists of."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rawblockd_client.arrays import ARRAY_DTYPES
from rawblockd_client.table.errors import RowsInvalid

Array = np.ndarray[Any, np.dtype[Any]]

RESERVED = "row."
COLUMNS_MAX = 12
"""A record has 16 parts; a bucket needs four itself."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Column:
    """One part of a row. ``default`` is what stands for a row that isn't there; None: nothing may."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    default: int | float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if _NAME.fullmatch(self.name) is None or self.name.startswith(RESERVED):
            raise ValueError(f"{self.name!r} is no name of a part: 1 to 64 of A-Z a-z 0-9 . _ -, not {RESERVED}…")
        if self.dtype not in ARRAY_DTYPES:
            raise ValueError(f"part {self.name}: {self.dtype!r} is not among {', '.join(ARRAY_DTYPES)}")
        if not all(type(size) is int and size > 0 for size in self.shape):
            raise ValueError(f"part {self.name}: sizes of a shape are whole numbers from 1 on")
        if self.default is not None:
            self._check_default(self.default)

    def _check_default(self, default: int | float) -> None:
        """Nothing is converted: a number that the type doesn't hold is no default of it."""
        if isinstance(default, float) and not math.isfinite(default):
            raise ValueError(f"part {self.name}: a default is finite")
        if "float" not in self.dtype and not isinstance(default, int):
            raise ValueError(f"part {self.name}: a default of {self.dtype} is a whole number")
        if "int" in self.dtype:
            bounds = np.iinfo(self.dtype)
            if not bounds.min <= default <= bounds.max:
                raise ValueError(f"part {self.name}: {default} is out of the range of {self.dtype}")

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * math.prod(self.shape))

    def filled(self, rows: int) -> Array:
        """So many rows of the default. Only for a column that has one."""
        assert self.default is not None
        return np.full((rows, *self.shape), self.default, dtype=self.dtype)

    def empty(self) -> Array:
        return np.zeros((0, *self.shape), dtype=self.dtype)

    def check(self, values: Any, rows: int) -> Array:
        """The values as given: of this type and shape exactly. Raises RowsInvalid."""
        array = np.asarray(values)
        if array.dtype != np.dtype(self.dtype):
            raise RowsInvalid(f"{array.dtype} is given, it is {self.dtype}", self.name)
        if array.shape != (rows, *self.shape):
            raise RowsInvalid(f"shape {array.shape} is given, {(rows, *self.shape)} is due", self.name)
        return array

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "default": self.default}


def column_of(document: dict[str, Any]) -> Column:
    return Column(document["name"], document["dtype"], tuple(document["shape"]), document["default"])


def check_columns(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Raises ValueError."""
    names = [column.name for column in columns]
    if not 1 <= len(columns) <= COLUMNS_MAX or len(set(names)) != len(names):
        raise ValueError(f"a table has 1 to {COLUMNS_MAX} parts of different names")
    return tuple(columns)


def check_keys(keys: Any) -> Array:
    """Keys as int64, without conversions that change one. Raises RowsInvalid."""
    array = np.asarray(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise RowsInvalid("keys are a list of whole numbers")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise RowsInvalid("keys are of 64 bits with a sign: view uint64 keys as int64")
    return np.ascontiguousarray(array.astype(np.int64))


def duplicates(keys: Array) -> int:
    """How many keys stand there once too often."""
    return int(keys.size - np.unique(keys).size)


def optional_column(values: Any, rows: int, name: str) -> Array | None:
    """Versions or frequencies, None without. Raises RowsInvalid."""
    if values is None:
        return None
    array = check_keys(values)
    if array.size != rows:
        raise RowsInvalid(f"{array.size} {name} for {rows} keys")
    return array
