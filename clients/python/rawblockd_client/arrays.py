"""Parts as arrays of numpy, without conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from rawblockd_client.models import DTYPE_BYTES, Entry, Part, PartData

ARRAY_DTYPES = tuple(name for name in DTYPE_BYTES if name != "bfloat16" and not name.startswith("float8"))
"""Element types that numpy has itself."""


def part_of_array(name: str, array: Any) -> PartData:
    """The array as it is; copied only if its bytes don't lie in order. Raises TypeError."""
    dtype = str(array.dtype)
    if dtype not in DTYPE_BYTES or not array.dtype.isnative:
        raise TypeError(f"part {name}: arrays of {array.dtype.str} are not stored")
    lying = np.ascontiguousarray(array)
    return PartData(Part(name, dtype, tuple(array.shape)), bytes_of(lying))


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of an array that lies in order, without copying."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # up to Python 3.11 unknown as a buffer


def arrays_of(entry: Entry) -> dict[str, np.ndarray[Any, Any]]:
    """The parts of an entry as read-only arrays over its bytes. Raises TypeError for types that numpy lacks."""
    found = {}
    data = entry.part_bytes()
    for part in entry.info.parts:
        if part.dtype not in ARRAY_DTYPES:
            raise TypeError(f"part {part.name}: numpy has no {part.dtype}; its bytes are in part_bytes()")
        array = np.frombuffer(data[part.name], dtype=np.dtype(part.dtype).newbyteorder("<"))
        found[part.name] = array.reshape(part.shape)
        found[part.name].flags.writeable = False
    return found
