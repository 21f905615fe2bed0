"""msgpack that was written wrong under right checksums and sums: numbers, text, shapes (B4)."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from storage.errors import EntryNotFound
from storage.format.catalogue import NamespaceRecord, SlabRecord, encode_record
from storage.recovery.errors import InvalidRowsFound
from storage.recovery.report import RepairSource
from storage.status import Reason
from tests.recovery.checks import KEEP_ALL, check_start, fill, start
from tests.recovery.expectations import Expected
from tests.recovery.test_damage_matrix_pages import POSITIONS, settled_before
from tests.recovery.test_damage_matrix_structures import from_headers
from tests.recovery.test_ways_out import refused
from tests.recovery.world import World
from tests.support.engines import check_accounts, get, peek

HUGE = (1 << 64) - 1
SLAB, NAMESPACE = SlabRecord.kind, NamespaceRecord.kind


def record(*values: Any) -> bytes:
    packed = msgpack.packb(list(values))
    return struct.pack("<H", len(packed)) + bytes(packed)


def raw(packed: bytes) -> bytes:
    return struct.pack("<H", len(packed)) + packed


ODD_RECORDS = {
    "a bool for an integer": record(SLAB, 900, True, 0, 77),
    "a float for an integer": record(SLAB, 900, 3.0, 0, 77),
    "a negative integer": record(SLAB, 900, -1, 0, 77),
    "a huge slab": record(SLAB, 900, HUGE, 0, 77),
    "a slab beyond the end": record(SLAB, 900, 4, 0, 77),
    "a class the device does not have": record(SLAB, 900, 3, 4, 77),
    "a huge class": record(SLAB, 900, 3, HUGE, 77),
    "a huge seq": record(NAMESPACE, HUGE, 9, "name", {}),
    "a huge namespace id": record(NAMESPACE, 900, HUGE, "name", {}),
    "namespace id 0": record(NAMESPACE, 900, 0, "name", {}),
    "nothing for an integer": record(SLAB, 900, None, 0, 77),
    "an unknown kind": record(99, 900, 1),
    "a kind that is a bool": record(True, 900, 1, 1, 1, 1),
    "no kind": record(),
    "a field too few": record(SLAB, 900, 3, 0),
    "a field too many": record(SLAB, 900, 3, 0, 77, 1),
    "no array": raw(msgpack.packb({"kind": 1})),
    "text that is no UTF-8": raw(b"\x95\x03\xcd\x03\x84\x09\xa4\xff\xfe\xc3\x28\x80"),
    "a name with a slash": record(NAMESPACE, 900, 9, "a/b", {}),
    "a name of bytes": record(NAMESPACE, 900, 9, b"name", {}),
    "an empty name": record(NAMESPACE, 900, 9, "", {}),
    "settings with a float": record(NAMESPACE, 900, 9, "name", {"qb": 1.5}),
    "settings with a bool": record(NAMESPACE, 900, 9, "name", {"qb": True}),
    "settings that name one thing twice": raw(b"\x95\x03\xcd\x03\x84\x09\xa4name\x82\xa1a\x01\xa1a\x02"),
    "an extension type": raw(b"\x95\x02\xcd\x03\x84\xd4\x01\x02\x00\x4d"),
    "more behind its end": raw(bytes(msgpack.packb([SLAB, 900, 3, 0, 77])) + b"\x01"),
    "a length beyond the end": struct.pack("<H", 500) + b"\x01",
    "a length of 0": struct.pack("<H", 0),
    "half a length": b"\x05",
}


@pytest.mark.parametrize("odd", ODD_RECORDS)
async def test_b4_an_odd_record_makes_the_catalogue_of_a_copy_unusable_and_nothing_else(world: World, odd: str) -> None:
    """B4, R1: the next older copy is the base."""
    victim = world.victim()
    victim.write_catalogue(world.newest, victim.catalogue(world.newest) + ODD_RECORDS[odd])
    rig = await start(world, victim)
    verdicts = {c.copy: c.verdict for c in rig.engine.status().recovery.copies}
    assert verdicts.pop(world.newest) == "catalogue: invalid"
    assert set(verdicts.values()) == {"valid"}
    await check_start(rig, world, Expected())
    await rig.stop()


@pytest.mark.parametrize("odd", ["a float for an integer", "a huge namespace id", "text that is no UTF-8", "no kind"])
async def test_b4_odd_records_in_every_copy_leave_headers_and_journal(world: World, odd: str) -> None:
    """B4, R1: no copy is half believed; the rebuild is exact."""
    victim = world.victim()
    for copy in world.copies:
        victim.write_catalogue(copy, ODD_RECORDS[odd] + victim.catalogue(copy))
    expected = Expected()
    expected.repaired[RepairSource.RECORD_HEADER] = from_headers(world)
    rig = await start(world, victim)
    await check_start(rig, world, expected)
    await rig.stop()


@pytest.mark.parametrize("odd", ODD_RECORDS)
async def test_b4_r6_an_odd_record_in_a_block_of_the_journal_that_verifies_is_a_bug(world: World, odd: str) -> None:
    """B4, R6: the start is refused with the code that points to a bug; the device is unchanged."""
    victim = world.victim()
    block = world.tail_mutations()[2].block
    victim.write_journal_wrong(block, world.last_block, records=ODD_RECORDS[odd])
    await refused(world, victim, InvalidRowsFound)
    await refused(world, victim, InvalidRowsFound, accept_loss=True)


# -- maps of record headers ----------------------------------------------------------------------------------------

ODD_FIELDS: dict[str, dict[str, Any]] = {
    "a key that is text": {"k": "small"},
    "an empty key": {"k": b""},
    "no key": {"k": None},
    "no namespace": {"n": None},
    "a namespace of bytes": {"n": b"n"},
    "a time that is a float": {"t": 1.5},
    "a time that is a bool": {"t": True},
    "a negative time": {"t": -5},
    "metadata that is a map": {"m": {"a": "b"}},
    "metadata of numbers": {"m": [[1, 2]]},
    "metadata of three": {"m": [["a", "b", "c"]]},
    "an unknown name": {"z": 1},
    "a number for a content type": {"c": 7},
}


def odd_map(packed: bytes, odd: dict[str, Any]) -> bytes:
    """The map with odd fields, as long as it was: another field takes up what is left."""
    fields: dict[str, Any] = msgpack.unpackb(packed)
    del fields["m"]
    fields |= odd
    for length in range(len(packed)):
        filler = {"c": "x" * length} if "m" in odd else {"m": [["f", "x" * length]]}
        result = bytes(msgpack.packb(fields | filler))
        if len(result) == len(packed):
            return result
    raise AssertionError("no filler makes the map as long as it was")


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("odd", ODD_FIELDS)
async def test_b4_r8_an_odd_map_in_a_record_header_makes_its_entry_a_miss(
    world: World, odd: str, position: str
) -> None:
    """B4, R8, B1: found by the first read, quarantined, counted; every other entry is served."""
    victim = world.victim()
    rows = POSITIONS[position](settled_before(world, 1))
    for row_id in rows:
        packed = victim.record_map(world.offsets[row_id])
        victim.write_record_map(world.offsets[row_id], odd_map(packed, ODD_FIELDS[odd]))
    rig = await start(world, victim, KEEP_ALL)
    assert not rig.engine.status().partial_recovery
    lost = {world.keys[row_id] for row_id in rows}
    for key, value in world.values.items():
        if key in lost:
            with pytest.raises(EntryNotFound):
                await get(rig.engine, key)
        assert await peek(rig.engine, key) == (None if key in lost else value)
    assert rig.engine.counters.corruptions["read"] == len(rows)
    assert rig.engine.reasons == [Reason.CORRUPTION]
    assert rig.engine.status().capacity.slots.quarantined == len(rows)
    check_accounts(rig.engine)
    await rig.engine.acknowledge()
    assert rig.engine.status().capacity.slots.quarantined == 0
    if position == "first":
        await fill(rig.engine)
    await rig.stop()


async def test_b4_records_that_are_right_are_not_refused(world: World) -> None:
    """The test's own records are odd in one thing each: without it they are taken."""
    victim = world.victim()
    right = encode_record(NamespaceRecord(900, 9, "name", {"qb": 5})) + record(NAMESPACE, 901, 10, "other", {})
    victim.write_catalogue(world.newest, victim.catalogue(world.newest) + right)
    rig = await start(world, victim)
    await check_start(rig, world, Expected())
    assert {"name", "other"} <= rig.engine.status().namespaces.keys()
    await rig.stop()
