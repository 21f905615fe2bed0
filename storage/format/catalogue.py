"""The catalogue: what is not a row. The same records stand in the journal and, compacted, in each checkpoint copy.

On the device a record is a u16 length and a msgpack array whose first element is its kind; kinds, in the order of
their fields, are the classes below.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_type_hints

import msgpack

from storage.format.layout import Defect, Undecodable, unique_names
from storage.format.names import is_namespace_name
from storage.format.row import ROW_BYTES, SEQ_MAX

_LENGTH = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class CatalogueRecord:
    """``seq`` is the record's position in the journal."""

    kind: ClassVar[int] = 0
    seq: int


@dataclass(frozen=True, slots=True)
class StartRecord(CatalogueRecord):
    """The daemon started: voids blocks of earlier starts behind ``last_block``."""

    kind: ClassVar[int] = 1
    start_count: int
    last_block: int
    last_checksum: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class SlabRecord(CatalogueRecord):
    """A slab was given to a class; rows with a lower seq and records of another generation are dead."""

    kind: ClassVar[int] = 2
    slab: int
    slot_class: int
    generation: int


@dataclass(frozen=True, slots=True)
class NamespaceRecord(CatalogueRecord):
    """A namespace exists under this id, with these settings."""

    kind: ClassVar[int] = 3
    namespace_id: int
    name: str
    settings: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamespaceWipedRecord(CatalogueRecord):
    """The id is dead for ever, and with it every row that bears it."""

    kind: ClassVar[int] = 4
    namespace_id: int


@dataclass(frozen=True, slots=True)
class PartialRecord(CatalogueRecord):
    """Partial recovery began (or went on) with these counts; see ``storage.recovery.report``."""

    kind: ClassVar[int] = 5
    time_ms: int
    unknown_loss: bool
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkippedRecord(CatalogueRecord):
    """One skipped entry of the report: why, where it stood (``copy`` + 1; 0 for the journal), and the raw row."""

    kind: ClassVar[int] = 6
    reason: str
    copy_plus_one: int
    page: int
    slab: int
    slot: int
    raw: bytes
    namespace_id: int
    write_id: int
    digest: bytes
    key: bytes
    """What is known of the key, from the row or the record header; 0 and empty where nothing is."""


@dataclass(frozen=True, slots=True)
class AcknowledgedRecord(CatalogueRecord):
    """An operator accepted the loss; ``counts`` is the report's summary as it stood."""

    kind: ClassVar[int] = 7
    time_ms: int
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CounterRecord(CatalogueRecord):
    """Only in copies: the ids drawn so far, so that none is drawn twice."""

    kind: ClassVar[int] = 8
    start_count: int
    next_namespace_id: int


@dataclass(frozen=True, slots=True)
class SupersededRecord(CatalogueRecord):
    """The key of a quarantined slot was put or deleted since: the slot is never made live again."""

    kind: ClassVar[int] = 9
    slab: int
    slot: int


@dataclass(frozen=True, slots=True)
class RestoredRecord(CatalogueRecord):
    """A skipped entry was repaired by a retry, and is skipped no more."""

    kind: ClassVar[int] = 10
    slab: int
    slot: int


@dataclass(frozen=True, slots=True)
class SlotFailuresRecord(CatalogueRecord):
    """How often a slot failed; 0 forgets it."""

    kind: ClassVar[int] = 11
    slab: int
    slot: int
    failures: int


_KINDS: dict[int, type[CatalogueRecord]] = {
    cls.kind: cls
    for cls in (
        StartRecord,
        SlabRecord,
        NamespaceRecord,
        NamespaceWipedRecord,
        PartialRecord,
        SkippedRecord,
        AcknowledgedRecord,
        CounterRecord,
        SupersededRecord,
        RestoredRecord,
        SlotFailuresRecord,
    )
}
_FIELDS: dict[int, tuple[tuple[str, Any], ...]] = {
    kind: tuple((f.name, get_type_hints(cls)[f.name]) for f in fields(cls)) for kind, cls in _KINDS.items()
}
_BASIC = {int, str, bytes, bool}


def encode_record(record: CatalogueRecord) -> bytes:
    """Length and msgpack array. Lengths are bounded by what a journal block takes; the journal checks it."""
    values = [record.kind, *(getattr(record, name) for name, _ in _FIELDS[record.kind])]
    packed: bytes = msgpack.packb(values)
    return _LENGTH.pack(len(packed)) + packed


def decode_records(stream: bytes) -> list[CatalogueRecord]:
    """Strictly decode records one behind the other. Raises Undecodable."""
    records: list[CatalogueRecord] = []
    position = 0
    while position < len(stream):
        if position + _LENGTH.size > len(stream):
            raise Undecodable(Defect.INVALID, "catalogue: cut length")
        (length,) = _LENGTH.unpack_from(stream, position)
        position += _LENGTH.size
        if length == 0 or position + length > len(stream):
            raise Undecodable(Defect.INVALID, "catalogue: cut record")
        records.append(_decode_record(stream[position : position + length]))
        position += length
    return records


def _decode_record(packed: bytes) -> CatalogueRecord:
    try:
        values = msgpack.unpackb(packed, use_list=False, strict_map_key=True, object_pairs_hook=unique_names)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise Undecodable(Defect.INVALID, "catalogue record") from error
    if type(values) is not tuple or not values or type(values[0]) is not int or values[0] not in _KINDS:
        raise Undecodable(Defect.INVALID, "catalogue record: kind")
    names = _FIELDS[values[0]]
    if len(values) != len(names) + 1:
        raise Undecodable(Defect.INVALID, "catalogue record: number of fields")
    for (name, hint), value in zip(names, values[1:], strict=True):
        if not _fits(hint, value):
            raise Undecodable(Defect.INVALID, f"catalogue record: {name}")
    record = _KINDS[values[0]](*values[1:])
    if not _in_range(record):
        raise Undecodable(Defect.INVALID, f"catalogue record: {type(record).__name__} out of range")
    return record


MAXIMA = {
    "seq": SEQ_MAX,
    "namespace_id": 0xFFFFFFFF,
    "next_namespace_id": 1 << 32,
    "start_count": 0xFFFFFFFF,
    "slab": 0xFFFFFFFF,
    "slot": 0xFFFF,
    "slot_class": 0xFF,
}
"""What rows and headers have room for; seqs are drawn one by one and never come near the end of theirs."""


def _in_range(record: CatalogueRecord) -> bool:
    """What the types of the fields can't say (B4)."""
    if any(getattr(record, name) > MAXIMA[name] for name, _ in _FIELDS[record.kind] if name in MAXIMA):
        return False
    if isinstance(record, NamespaceRecord):
        return is_namespace_name(record.name) and record.namespace_id > 0
    return not isinstance(record, SkippedRecord) or len(record.raw) == ROW_BYTES


def _fits(hint: Any, value: Any) -> bool:
    """Exact types: a bool is no int, a float is nothing; integers are not negative (B4)."""
    if hint in _BASIC:
        return type(value) is hint and (hint is not int or value >= 0)
    if type(value) is not dict:
        return False
    allowed = (int, str) if "str" in str(hint).split(",", 1)[1] else (int,)
    return all(type(k) is str and type(v) in allowed and (type(v) is str or v >= 0) for k, v in value.items())
