"""The row: a slot's 64-byte line in the slot table, in memory, in pages and in the journal.

A row says what its slot holds. Free rows are written too, so that "nothing here" is a statement with a checksum and
not the absence of one; in a free row namespace, digest and write id name the entry that was freed, for replay and
events. The access counter is not covered by the row's checksum: it changes with every hit.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.format.checksums import crc32c, crc32c_of_lines
from storage.format.layout import Defect, Field, Layout, Undecodable

ROW_BYTES = 64
SEQ_MAX = (1 << 63) - 1
"""Seqs are drawn one by one and never come near it: a higher one was written wrong."""
HEADER_UNIT_BYTES = 64
READS_MASK = 0x03
"""The access byte's bits that count reads."""
MAIN_FLAG = 0x04
"""The access byte's bit of an entry in the main queue."""


class SlotState(enum.IntEnum):
    FREE = 0
    LIVE = 1
    STAGED = 2
    QUARANTINED = 3
    RETIRED = 4


class FreeReason(enum.IntEnum):
    """Why a slot was freed; kept in its free row."""

    NEVER_USED = 0
    CLIENT = 1
    REPLACED = 2
    EVICTED = 3
    EXPIRED = 4
    QUOTA = 5
    WIPED = 6
    CORRUPT = 7
    RECOVERY = 8


class QuarantineReason(enum.IntEnum):
    """Why a slot is evidence; kept in its quarantined row."""

    SKIPPED = 1
    CORRUPT = 2
    UNREADABLE = 3


ROW = Layout(
    "row",
    ROW_BYTES,
    [
        Field("checksum", "I", "CRC32C of the uuid and of bytes 4–63, the access counter as zero"),
        Field("state", "B", "0 free, 1 live, 2 staged, 3 quarantined, 4 retired"),
        Field("slot_class", "B", "slot class of the slab"),
        Field("access", "B", "of eviction: bits 0–1 reads, bit 2 in the main queue; not covered by the checksum"),
        Field("reason", "B", "free: why it was freed; quarantined: why; else 0"),
        Field("namespace_id", "I", "namespace of the entry; 0 if the slot was never used"),
        Field("slab", "I", "place: slab"),
        Field("seq", "Q", "position in the journal of this change"),
        Field("write_id", "Q", "write id of the record; in a free row of the record that was freed"),
        Field("digest", "16s", "keyed digest of namespace and key"),
        Field("payload_bytes", "I", "payload size; 0 in a free row"),
        Field("payload_checksum", "I", "CRC32C of the record's chunk checksums; 0 in a free row"),
        Field("expires_at", "I", "seconds since 1970; 0 never"),
        Field("slot", "H", "place: slot in the slab"),
        Field("header_units", "H", "size of the record header in units of 64 bytes; 0 in a free row"),
    ],
)

ROW_STRUCT = ROW.struct
ACCESS_OFFSET = ROW.offsets["access"]
STATE_OFFSET = ROW.offsets["state"]
DIGEST_OFFSET = ROW.offsets["digest"]
DIGEST_BYTES = 16
NAMESPACE_OFFSET = ROW.offsets["namespace_id"]
SEQ_OFFSET = ROW.offsets["seq"]
_BODY = struct.Struct(ROW_STRUCT.format.replace("I", "", 1))

ROW_DTYPE = np.dtype(
    [
        ("checksum", "<u4"),
        ("state", "u1"),
        ("slot_class", "u1"),
        ("access", "u1"),
        ("reason", "u1"),
        ("namespace_id", "<u4"),
        ("slab", "<u4"),
        ("seq", "<u8"),
        ("write_id", "<u8"),
        ("digest", "V16"),
        ("payload_bytes", "<u4"),
        ("payload_checksum", "<u4"),
        ("expires_at", "<u4"),
        ("slot", "<u2"),
        ("header_units", "<u2"),
    ]
)
assert ROW_DTYPE.itemsize == ROW_BYTES
assert ROW_DTYPE.names == tuple(f.name for f in ROW.fields)

Rows = npt.NDArray[Any]
"""A structured array of ``ROW_DTYPE``."""


class Row(NamedTuple):
    """One row, decoded; field order is the layout's."""

    checksum: int
    state: int
    slot_class: int
    access: int
    reason: int
    namespace_id: int
    slab: int
    seq: int
    write_id: int
    digest: bytes
    payload_bytes: int
    payload_checksum: int
    expires_at: int
    slot: int
    header_units: int

    @property
    def header_bytes(self) -> int:
        return self.header_units * HEADER_UNIT_BYTES

    @property
    def record_bytes(self) -> int:
        """Header and payload, without the padding to a block."""
        return self.header_units * HEADER_UNIT_BYTES + self.payload_bytes


def seed_of(uuid: bytes) -> int:
    """What the checksum of a device's rows starts from, so that another device's row does not verify (B3)."""
    return crc32c(uuid)


def encode_row(
    seed: int,
    *,
    state: int,
    slot_class: int,
    slab: int,
    slot: int,
    seq: int,
    namespace_id: int = 0,
    write_id: int = 0,
    digest: bytes = bytes(16),
    payload_bytes: int = 0,
    payload_checksum: int = 0,
    expires_at: int = 0,
    header_units: int = 0,
    reason: int = 0,
) -> bytes:
    """64 bytes with the access counter 0."""
    fields = (
        state,
        slot_class,
        0,
        reason,
        namespace_id,
        slab,
        seq,
        write_id,
        digest,
        payload_bytes,
        payload_checksum,
        expires_at,
        slot,
        header_units,
    )
    return encode_fields(seed, fields)[0]


_new = tuple.__new__
_pack_body = _BODY.pack


def encode_fields(seed: int, fields: tuple[int | bytes, ...]) -> tuple[bytes, Row]:
    """A row from all its fields but the checksum, in the layout's order: as 64 bytes, and as they will be decoded."""
    body = _pack_body(*fields)
    checksum = crc32c(body, seed)
    return checksum.to_bytes(4, "little") + body, _new(Row, (checksum, *fields))


def row_of(encoded: bytes) -> Row:
    """The fields of a row that was encoded here, or verified before."""
    return _new(Row, ROW_STRUCT.unpack(encoded))  # straight to the tuple: half of what ``Row._make`` takes


def decode_row(seed: int, line: bytes | memoryview) -> Row:
    """Decode a row of a journal block. Raises Undecodable for a wrong checksum, an unknown state or reason."""
    row = Row._make(ROW_STRUCT.unpack(line))
    body = bytearray(line[4:])
    body[ACCESS_OFFSET - 4] = 0
    if crc32c(body, seed) != row.checksum:
        raise Undecodable(Defect.CHECKSUM, "row")
    if not plausible(row):
        raise Undecodable(Defect.INVALID, "row")
    return row


def plausible(row: Row) -> bool:
    """Strict ranges that hold for a row wherever it stands (B4)."""
    if not 0 < row.seq <= SEQ_MAX:
        return False
    if row.state == SlotState.FREE:
        empty = row.payload_bytes | row.payload_checksum | row.expires_at | row.header_units
        if empty or row.reason > FreeReason.RECOVERY:
            return False
        if row.reason == FreeReason.NEVER_USED:
            return not (row.namespace_id or row.write_id or any(row.digest))
        return True
    if row.state in (SlotState.LIVE, SlotState.STAGED):
        return bool(row.namespace_id and row.write_id and row.header_units >= 2 and row.reason == 0)
    if row.state == SlotState.QUARANTINED:
        return QuarantineReason.SKIPPED <= row.reason <= QuarantineReason.UNREADABLE
    return row.state == SlotState.RETIRED


def fresh_rows(seed: int, slab: int, slot_class: int, slots: int, seq: int) -> Rows:
    """The free rows of a slab just given to a class; ``seq`` is that of the catalogue record that gave it."""
    rows = np.zeros(slots, dtype=ROW_DTYPE)
    rows["state"] = SlotState.FREE
    rows["slot_class"] = slot_class
    rows["slab"] = slab
    rows["slot"] = np.arange(slots)
    rows["seq"] = seq
    rows["checksum"] = checksums_of(seed, rows)
    return rows


def checksums_of(seed: int, rows: Rows) -> npt.NDArray[np.uint32]:
    """The right checksum of each of many rows, computed at once."""
    lines = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, ROW_BYTES)[:, 4:].copy()
    lines[:, ACCESS_OFFSET - 4] = 0
    return crc32c_of_lines(lines, seed)


def implausible_of(rows: Rows) -> npt.NDArray[np.bool_]:
    """``not plausible(row)`` for each of many rows, computed at once.

    Most rows name an entry: all are judged as if they did, 10 ns each, and those that don't once more.
    """
    state = rows["state"].copy()
    result: npt.NDArray[np.bool_] = (rows["reason"] != 0) | (rows["namespace_id"] == 0)
    result |= rows["write_id"] == 0
    result |= rows["header_units"] < 2
    others = np.flatnonzero((state != SlotState.LIVE) & (state != SlotState.STAGED))
    if len(others):
        # Taken as plain 64 bytes each: a sixteenth of the time that numpy takes field by field.
        result[others] = _implausible_unnamed(np.ascontiguousarray(rows).view(f"V{ROW_BYTES}")[others].view(ROW_DTYPE))
    result |= rows["seq"] - np.uint64(1) >= np.uint64(SEQ_MAX)  # 0 less 1 is the highest of all
    return result


def _implausible_unnamed(rows: Rows) -> npt.NDArray[np.bool_]:
    """Of rows that are neither live nor staged, whatever their seqs."""
    # Columns that are used more than once are taken out of the rows first: most of the time goes into that.
    state, reason = rows["state"].copy(), rows["reason"].copy()
    empty = (rows["payload_bytes"] == 0) & (rows["payload_checksum"] == 0)
    empty &= (rows["expires_at"] == 0) & (rows["header_units"] == 0)
    digest_words = np.ascontiguousarray(rows["digest"]).view(np.uint64).reshape(-1, 2)
    unnamed = (rows["namespace_id"] == 0) & (rows["write_id"] == 0)
    unnamed &= (digest_words[:, 0] == 0) & (digest_words[:, 1] == 0)
    free = (state == SlotState.FREE) & empty & (reason <= FreeReason.RECOVERY)
    free &= (reason != FreeReason.NEVER_USED) | unnamed
    evidence = (state == SlotState.QUARANTINED) & (reason >= 1) & (reason <= QuarantineReason.UNREADABLE)
    result: npt.NDArray[np.bool_] = ~(free | evidence | (state == SlotState.RETIRED))
    return result
