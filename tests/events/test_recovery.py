"""What a damaged device does to an index kept elsewhere: it never points at what can't be served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest import mock

import pytest

from storage.errors import EntryNotFound
from tests.events.mirror import Mirror
from tests.support.damage import key_of, page_of, put_many, row_id_of, settled, slot_of, wreck_header
from tests.support.engines import Rig, formatted_image, get, put, short_journal
from tests.support.simulated_device import cut_all

ENTRIES = 20
VICTIM = 3


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """An engine with entries that every copy holds; tests damage the device and start over."""
    with short_journal(256, reserve=8):
        rig = Rig(formatted_image(journal_blocks=256))
        try:
            await rig.start()
            await settled(rig, ENTRIES)
            yield rig
            await rig.stop()
        finally:
            cut_all()


class Damage:
    """The page of an entry is damaged in all copies and its record can't be read; its row may still be legible."""

    def __init__(self, rig: Rig, *, legible: bool) -> None:
        engine, self.rig = rig.engine, rig
        self.geometry = engine._index.geometry
        row_id = row_id_of(engine, VICTIM)
        self.page, self.line = page_of(engine, VICTIM), row_id % (self.geometry.block_bytes // 64)
        self.slot = slot_of(engine, VICTIM)
        self.write_id = engine._index.table.row(row_id).write_id
        self.legible = legible

    async def strike(self) -> None:
        """Stop, damage, start."""
        await self.rig.stop(checkpoint=False)
        image = self.rig.device.image
        for copy in range(self.geometry.copies):
            offset = self.geometry.page_offset(copy, self.page)
            content = bytearray(image.read(offset, 4096))
            content[40] ^= 1
            if not self.legible:
                content[64 * self.line : 64 * self.line + 64] = bytes(64)
            image.write(offset, bytes(content))
        wreck_header(image, self.slot)
        await self.rig.start_over(image)

    def mend(self) -> None:
        """The record can be read again."""
        wreck_header(self.rig.device.image, self.slot)


async def test_a_skipped_entry_is_deleted_as_soon_as_it_is_skipped(rig: Rig) -> None:
    """Who comes back after the start learns it by an event; who comes back after two more starts, too."""
    prompt, sleeper = Mirror(), Mirror()
    prompt.follow(rig.engine)
    sleeper.follow(rig.engine)
    damage = Damage(rig, legible=True)
    await damage.strike()
    assert rig.engine.status().skipped_entries == 1
    prompt.follow(rig.engine)
    [event] = prompt.seen
    assert (event.kind, event.reason, event.write_id) == ("deleted", "recovery", damage.write_id)
    await rig.reopen()
    await put(rig.engine, b"other", b"x")
    await rig.reopen()
    damage.mend()
    assert (await rig.engine.retry()).restored == 1
    prompt.follow(rig.engine)
    event = prompt.seen[-1]
    assert (event.kind, event.reason, event.write_id) == ("stored", "recovery", damage.write_id)
    assert await get(rig.engine, key_of(VICTIM))
    sleeper.follow(rig.engine)
    assert prompt.resyncs == sleeper.resyncs == []
    assert [event.kind for event in sleeper.seen] == ["deleted", "stored", "stored"]
    await rig.reopen()
    late = Mirror()
    late.entries, late.position = set(sleeper.entries), sleeper.position
    late.follow(rig.engine)
    assert late.resyncs == []


async def test_when_nobody_can_say_which_entry_was_skipped_all_resync(rig: Rig) -> None:
    """The row is gone and so is the record: an index may hold it under any ETag."""
    mirror, sleeper = Mirror(), Mirror()
    mirror.follow(rig.engine)
    sleeper.follow(rig.engine)
    damage = Damage(rig, legible=False)
    await damage.strike()
    assert rig.engine.status().skipped_entries >= 1
    mirror.follow(rig.engine)
    assert mirror.resyncs == ["unknown_loss"]
    with pytest.raises(EntryNotFound):
        await rig.engine.open_read("n", key_of(VICTIM))
    await rig.reopen()
    mirror.follow(rig.engine)
    assert mirror.resyncs == ["unknown_loss"], "once is enough"
    sleeper.follow(rig.engine)
    assert sleeper.resyncs == ["unknown_loss"]


async def test_a_gap_in_the_journal_is_an_unknown_loss(rig: Rig) -> None:
    mirror = Mirror()
    await put_many(rig.engine, range(100, 140))
    block = rig.engine._journal.last_block
    await put_many(rig.engine, range(140, 180))
    await rig.engine.flush()
    await rig.engine._journal.mark_flushed()
    mirror.follow(rig.engine)
    await rig.stop(checkpoint=False)
    image, geometry = rig.device.image, rig.engine._index.geometry
    image.write(geometry.journal_block_offset(block), bytes(4096))
    await rig.start_over(image)
    assert rig.engine.status().recovery.unknown_loss
    mirror.follow(rig.engine)
    assert mirror.resyncs == ["unknown_loss"]
    await put(rig.engine, b"more", b"x")
    mirror.follow(rig.engine)
    await rig.reopen()
    mirror.follow(rig.engine)
    assert mirror.resyncs == ["unknown_loss"], "what happened since is known"


async def test_without_any_copy_nothing_is_known_of_before(rig: Rig) -> None:
    mirror = Mirror()
    mirror.follow(rig.engine)
    await rig.stop()
    image, geometry = rig.device.image, rig.engine._index.geometry
    for copy in range(geometry.copies):
        image.write(geometry.copy_offset(copy), bytes(4096))
    await rig.start_over(image)
    mirror.follow(rig.engine)
    assert mirror.resyncs == ["unknown_loss"]


async def test_a_device_formatted_anew_is_another_one(rig: Rig) -> None:
    mirror = Mirror()
    mirror.follow(rig.engine)
    assert mirror.position is not None
    mirror.position = mirror.position._replace(device="01234567")
    mirror.follow(rig.engine)
    assert mirror.resyncs == ["other_device"]


async def test_many_clean_restarts_need_no_resync(rig: Rig) -> None:
    """The journal reaches back to the oldest copy: as many restarts as there are copies can be slept through."""
    sleeper = Mirror()
    sleeper.follow(rig.engine)
    for number in range(2):
        await put(rig.engine, b"new %d" % number, b"x")
        await rig.engine.delete("n", key_of(10 + number))
        await rig.reopen()
    sleeper.follow(rig.engine)
    assert sleeper.resyncs == []
    assert [event.kind for event in sleeper.seen] == ["stored", "deleted"] * 2


@pytest.mark.parametrize("history", [65536, 2])
async def test_a_put_that_a_power_loss_took_is_deleted_for_whoever_heard_of_it(rig: Rig, history: int) -> None:
    """Its row arrived, its payload did not. Also for who comes back a start later, and where the row of the put itself
    lies before what that start looks at: 2 are the start record and the correction.
    """
    engine = rig.engine
    first = await put(engine, b"key", b"first")
    await engine.flush()
    prompt, sleeper = Mirror(), Mirror()
    lost = await put(engine, b"key", b"second")
    prompt.follow(engine)
    sleeper.follow(engine)
    geometry = engine._index.geometry
    journal = range(geometry.journal_offset, geometry.journal_offset + geometry.journal_bytes)
    image = rig.device.crash_image(power_loss=True, keep=lambda write: write.offset_bytes in journal)
    await rig.crash(image)
    assert rig.engine.status().recovery.lost_unflushed == 1
    prompt.follow(rig.engine)
    assert prompt.resyncs == []
    told = {(event.kind, event.reason, event.write_id) for event in prompt.seen}
    assert told == {("deleted", "recovery", lost.write_id), ("stored", "recovery", first.write_id)}
    await rig.engine.flush()
    await rig.engine._journal.mark_flushed()
    before = rig.engine.status().journal.seq
    with mock.patch("storage.recovery.history.HISTORY_MAX", before - engine.events.seq if history == 2 else history):
        await rig.crash()
    sleeper.follow(rig.engine)
    assert sleeper.resyncs == []
    assert ("n", lost.write_id) not in sleeper.entries
    assert ("n", first.write_id) in sleeper.entries
