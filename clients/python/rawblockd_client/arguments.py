"""What both clients make of their arguments: keys, items, values and parts as callers like to give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, Union

from rawblockd_client.codec import Buffer
from rawblockd_client.errors import AnswerInvalid
from rawblockd_client.exchange import Answer, Call
from rawblockd_client.models import Entry, Key, Part, PartData, Presence, PutItem
from rawblockd_client.version import VERSION

T = TypeVar("T")

Value = Union[Buffer, Sequence[Buffer]]
PartValue = Union[PartData, Any]
"""A ``PartData``, or an array of numpy."""

BATCH_KEYS_MAX = 10_000


def items_of(entries: Mapping[Any, Value] | Iterable[PutItem | tuple[Key, Value]]) -> list[PutItem]:
    """From a mapping, from pairs, or items as they are."""
    listed: Iterable[Any] = entries.items() if isinstance(entries, Mapping) else entries
    return [one if isinstance(one, PutItem) else PutItem(one[0], one[1]) for one in listed]


def split_parts(parts: Mapping[str, PartValue]) -> tuple[tuple[Part, ...], list[Buffer]]:
    """What describes the parts, and their bytes in the same order. Raises TypeError, ValueError."""
    data = [_part_data(name, value) for name, value in parts.items()]
    for one in data:
        if memoryview(one.data).nbytes != one.part.size_bytes:
            given = memoryview(one.data).nbytes
            raise ValueError(f"part {one.part.name} has {one.part.size_bytes} bytes, {given} are given")
    return tuple(one.part for one in data), [one.data for one in data]


def sink_of(buffer: Any) -> memoryview:
    """The caller's buffer as writable bytes. Raises TypeError, ValueError."""
    view = memoryview(buffer)
    if view.readonly:
        raise ValueError("the buffer is read-only")
    return view.cast("B")


def copied(results: list[Any]) -> list[Any]:
    """Batch results with values of their own, so that one of them does not keep the whole answer in memory."""
    return [
        Entry(one.info, bytes(one.value)) if isinstance(one, Entry) and not isinstance(one.value, bytes) else one
        for one in results
    ]


def joined(presences: Sequence[Presence], counts: Sequence[int]) -> Presence:
    """Presences of slices of the keys as one."""
    leading = 0
    for presence, count in zip(presences, counts):
        leading += presence.leading_hits
        if presence.leading_hits < count:
            break
    found = tuple(bit for presence in presences for bit in presence.found)
    sizes = None
    if presences and presences[0].sizes is not None:
        sizes = tuple(size for presence in presences for size in presence.sizes or ())
    return Presence(found, leading, sizes)


def slices(keys: Sequence[Any]) -> list[Sequence[Any]]:
    """So that each is within what one batch takes."""
    return [keys[at : at + BATCH_KEYS_MAX] for at in range(0, len(keys), BATCH_KEYS_MAX)]


def _part_data(name: str, value: PartValue) -> PartData:
    if isinstance(value, PartData):
        if value.part.name != name:
            raise ValueError(f"part {value.part.name} is given as {name}")
        return value
    if hasattr(value, "__array_interface__"):
        from rawblockd_client.arrays import part_of_array

        return part_of_array(name, value)
    raise TypeError(f"part {name} is neither PartData nor an array")


def common_headers(token: str | None) -> dict[str, str]:
    """What every request has."""
    headers = {"User-Agent": f"rawblockd-client/{VERSION}"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def finish(call: Call[T], answer: Answer) -> T:
    """The call's result. Raises ClientError."""
    try:
        return call.parse(answer)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise AnswerInvalid(f"the answer lacks something: {type(error).__name__} {error}") from error
