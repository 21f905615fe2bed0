"""Without any copy: slab headers, record headers and the journal make the index anew; nothing else does (R1, B1)."""

from __future__ import annotations

from unittest import mock

import pytest

from storage.errors import JournalUnavailable
from storage.format.row import SlotState
from storage.namespace_settings import NamespaceSettings
from storage.recovery.report import RepairSource
from tests.recovery.checks import KEEP_ALL, check_acknowledged, check_start, restart, start
from tests.recovery.expectations import Expected
from tests.recovery.test_damage_matrix_structures import from_headers
from tests.recovery.world import Builder, World
from tests.support.engines import Rig, check_accounts, payload_of, peek, put, until
from tests.support.victim import Victim


async def begun() -> Builder:
    made = Builder(KEEP_ALL)
    await made.rig.start()
    return made


async def lose_copies(made: Builder, *, journal: bool = False, stop: bool = True) -> Rig:
    """The device with all its copies destroyed, started anew."""
    if stop:
        await made.engine.flush()
        await made.rig.stop(checkpoint=False)
    victim = Victim(made.rig.device.image, made.world.superblock)
    victim.destroy_copies()
    if journal:
        victim.destroy_journal()
    return await start(made.world, victim)


async def test_r1_a_rebuild_with_the_journal_intact_is_exact(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """R1: overwritten, deleted, expired and replaced entries included; then checkpoints go on as ever."""
    victim = world.victim()
    victim.destroy_copies()
    expected = Expected()
    expected.repaired[RepairSource.RECORD_HEADER] = from_headers(world)
    rig = await start(world, victim)
    assert rig.engine.status().recovery.rebuilt
    await check_start(rig, world, expected, caplog)
    await rig.engine.checkpoint()
    await restart(rig)
    assert not rig.engine.status().recovery.rebuilt
    await rig.stop()


async def test_r3_copies_and_journal_lost_is_a_loss_of_unknown_extent(world: World) -> None:
    """R3: what headers prove is served; that deletions may be undone is said, and stays said until acknowledged."""
    victim = world.victim()
    victim.destroy_copies()
    victim.destroy_journal()
    rig = await start(world, victim)
    status = rig.engine.status()
    assert status.partial_recovery
    assert status.recovery.unknown_loss
    for key, value in world.values.items():
        if not key.startswith((b"small", b"new", b"medium")):
            assert await peek(rig.engine, key) == value
    check_accounts(rig.engine)
    await check_acknowledged(rig)
    await rig.stop()


# -- forgeries -----------------------------------------------------------------------------------------------------


async def test_b1_values_that_hold_copies_of_live_records_at_every_block_make_no_phantom() -> None:
    """B1, B3: the exact bytes of records, header and all, stored as a value; only the record around them is one."""
    made = await begun()
    for number in range(8):
        await made.put(b"real %d" % number, 1000 + number)
    table = made.engine._index.table
    records = [
        made.rig.device.image.read(table.slot_offset(row_id), 4096)
        for row_id in table.row_ids().tolist()
        if table.state(row_id) == SlotState.LIVE
    ]
    for skew in range(0, 4096, 64):  # wherever the payload begins behind its header, one of these is aligned
        forged = bytes(skew) + b"".join(records[:3])
        await put(made.engine, b"forged %d" % skew, forged)
        made._note(b"forged %d" % skew, forged)
    for number in range(0, 64, 4):  # and some of their slots are free again, forged bytes and all
        await made.delete(b"forged %d" % (number * 64))
    for number in range(4):
        await made.delete(b"real %d" % number)
    for _ in range(4):
        await made.checkpoint()
    rig = await lose_copies(made)
    assert rig.engine.status().recovery.recovered_entries == len(made.world.values)
    for key in {m.key for m in made.world.mutations}:
        assert await peek(rig.engine, key) == made.world.values.get(key), key
    check_accounts(rig.engine)
    await rig.stop()


async def test_b3_records_of_a_dead_generation_at_their_right_places_do_not_come_back() -> None:
    """B3, R1: the slab changed its class and changed back; what its first life left in it is dead."""
    made = await begun()
    first = made.engine
    for number in range(40):
        await made.put(b"old %d" % number, 900)
    table = first._index.table
    row_id = next(r for r in table.row_ids().tolist() if table.state(r) == SlotState.LIVE)
    offset, slab = table.slot_offset(row_id), table.place_of(row_id)[0]
    old_record = made.rig.device.image.read(offset, 4096)
    generation = int(table.slab_generation[slab])
    for number in range(40):
        await made.delete(b"old %d" % number)
    await first.flush()
    while table.slab_class[slab] == 0:  # three slabs are without owner; the fourth must then change its class
        await made.put(b"large %d" % made.count, 600_000)
    while table.slab_class[slab] != 0:
        for key in [k for k in made.world.values if k.startswith(b"large")]:
            await made.delete(key)
        await first.flush()
        for number in range(257 * 4):
            await made.put(b"new %d" % number, 900)
            if table.slab_class[slab] == 0:
                break
    assert int(table.slab_generation[slab]) > generation
    free = [r for r in table.row_ids_of_slab(slab).tolist() if table.state(r) == SlotState.FREE]
    assert free
    for _ in range(4):
        await made.checkpoint()
    await first.flush()
    await made.rig.stop(checkpoint=False)
    if row_id in free:
        made.rig.device.image.write(offset, old_record)
    for other in free[:20]:
        made.rig.device.image.write(table.slot_offset(other), old_record)
    rig = await lose_copies(made, stop=False)
    assert rig.engine.status().recovery.recovered_entries == len(made.world.values)
    assert await peek(rig.engine, b"old 0") is None
    check_accounts(rig.engine)
    await rig.stop()


# -- what must not come back ---------------------------------------------------------------------------------------


async def test_d2_older_versions_and_deleted_entries_do_not_come_back_once_their_rows_left_the_journal() -> None:
    """D2, R1: a freed slot's header is made void before its freeing row is trimmed."""
    made = await begun()
    for number in range(20):
        await made.put(b"key %d" % number, 700)
    for number in range(20):
        await made.put(b"key %d" % number, 800)
    for number in range(0, 20, 2):
        await made.delete(b"key %d" % number)
    for _ in range(4):
        await made.checkpoint()
        await made.put(b"other", 100)
    rig = await lose_copies(made)
    for key in {m.key for m in made.world.mutations}:
        assert await peek(rig.engine, key) == made.world.values.get(key), key
    await rig.stop()


async def test_d2_a_name_used_again_is_the_new_one_s_although_slots_of_the_old_are_not_void_yet() -> None:
    """D2, R1: the journal names every namespace, so headers decide nothing about names; settings survive, too."""
    made = await begun()
    engine = made.engine
    for number in range(300):
        await put(engine, b"old %d" % number, b"x", namespace="a")
    with mock.patch("storage.namespace_changes.FREED_AT_ONCE", 8):
        await engine.wipe_namespace("a")
        await engine.set_namespace("a", NamespaceSettings(quota_entries=7))
        await put(engine, b"new", b"y", namespace="a")
        assert engine._index.namespaces.dying, "the checkpoint comes in the middle"
        await engine.checkpoint()
        await until(lambda: not engine._index.namespaces.dying)
    for number in range(2):
        await put(engine, b"other", b"%d" % number, namespace="b")
        await engine.checkpoint()
    rig = await lose_copies(made)
    assert not rig.engine.status().partial_recovery
    assert await peek(rig.engine, b"new", namespace="a") == b"y"
    assert await peek(rig.engine, b"old 299", namespace="a") is None
    assert rig.engine.namespace("a").settings == NamespaceSettings(quota_entries=7)
    check_accounts(rig.engine)
    await rig.stop()


async def test_d2_a_header_a_reader_kept_from_being_made_void_costs_nobody_their_entry() -> None:
    """R1: while a slow reader holds the old version, its freeing row is journaled again; the new one still counts."""
    made = await begun()
    await made.put(b"key", 700)
    reader = await made.engine.open_read("n", b"key")
    await made.put(b"key", 800)
    for _ in range(5):
        await made.put(b"other", 100)
        await made.checkpoint()
    rig = await _lose_while_read(made)
    reader.close()
    assert await peek(rig.engine, b"key") == made.world.values[b"key"]
    assert rig.engine.status().recovery.superseded == 0
    await rig.stop()
    await made.rig.stop(checkpoint=False)


async def _lose_while_read(made: Builder) -> Rig:
    victim = Victim(made.rig.device.crash_image(), made.world.superblock)
    victim.destroy_copies()
    return await start(made.world, victim)


async def test_d2_a_slot_released_late_says_nothing_of_its_key_which_lives_elsewhere() -> None:
    """R1, R5: an entry failed, was put again elsewhere, and only much later its old slot was acknowledged."""
    made = await begun()
    await made.put(b"key", 700)
    table = made.engine._index.table
    row_id = next(r for r in table.row_ids().tolist() if table.state(r) == SlotState.LIVE)
    made.rig.device.flip(table.slot_offset(row_id) + 300)
    with pytest.raises(LookupError):
        await _read(made, b"key")
    await made.put(b"key", 800)
    for _ in range(5):
        await made.put(b"other", 100)
        await made.checkpoint()
    await made.engine._partial.acknowledge()  # type: ignore[union-attr]
    rig = await lose_copies(made)
    assert await peek(rig.engine, b"key") == made.world.values[b"key"]
    await rig.stop()


async def _read(made: Builder, key: bytes) -> None:
    if await peek(made.engine, key) is None:
        raise LookupError(key)


@pytest.mark.parametrize("how", ["aborted", "crashed"])
async def test_d2_what_a_put_that_never_ended_left_does_not_come_back_after_a_scrub(how: str) -> None:
    """D2, R1: its header verifies, but nobody was told that it is there; the scrubber makes it void."""
    made = await begun()
    await made.put(b"kept", 700)
    session = await made.engine.begin_put("n", b"ghost", 900)
    await session.write(payload_of(77, 900))
    row_id = session.row_id
    offset = made.engine._index.table.slot_offset(row_id)
    made.engine._journal.unavailable = "for this test"
    with pytest.raises(JournalUnavailable):
        await session.commit()
    session.abort()
    made.engine._journal.unavailable = ""
    rig = made.rig
    if how == "crashed":  # then nobody remembers the slot as one to be made void
        image = made.rig.device.image.copy()
        await made.rig.stop(checkpoint=False)
        rig = await start(made.world, Victim(image, made.world.superblock))
    assert any(rig.device.image.read(offset, 4096))
    await rig.engine.scrubber.one_pass()
    for _ in range(4):
        await rig.engine.checkpoint()
    await rig.engine.flush()
    await rig.stop(checkpoint=False)
    made.rig = rig
    again = await lose_copies(made, stop=False)
    assert await peek(again.engine, b"ghost") is None
    assert await peek(again.engine, b"kept") == made.world.values[b"kept"]
    await again.stop()
