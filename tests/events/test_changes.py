"""Every way in which an entry comes and goes, and what the feed says of it."""

from __future__ import annotations

import asyncio
import errno

import pytest

from storage.device.counters import OpKind
from storage.engine import Engine
from storage.entries import Durability
from storage.errors import EntryCorrupt, JournalUnavailable
from storage.events import Event
from storage.imports.session import ImportPolicy
from storage.namespace_settings import NamespaceSettings
from storage.row_changes import PutIntent
from storage.schema import PartSpec
from tests.events.mirror import Mirror, live_entries
from tests.support.engines import Rig, formatted_image, payload_of, put, short_journal, until
from tests.support.simulated_device import Fault, cut_all

Told = tuple[str, str, str, bytes, int]


def told(event: Event) -> Told:
    return event.kind, event.namespace, event.reason, event.key, event.write_id


def since(engine: Engine, count: int) -> list[Event]:
    """The events after the first ``count``."""
    return engine.events.last(1 << 20)[count:]


async def test_a_put_an_overwrite_and_a_delete(rig: Rig) -> None:
    engine = rig.engine
    first = await put(engine, b"a", b"one", expires_at=int(rig.clock()) + 60)
    second = await put(engine, b"a", b"more")
    await engine.delete("n", b"a")
    events = engine.events.last(10)
    assert [told(event) for event in events] == [
        ("stored", "n", "", b"a", first.write_id),
        ("stored", "n", "", b"a", second.write_id),
        ("deleted", "n", "client", b"a", second.write_id),
    ]
    assert [event.replaced for event in events] == [0, first.write_id, 0]
    assert [event.size_bytes for event in events] == [3, 4, 0]
    assert [event.expires_at for event in events] == [int(rig.clock()) + 60, 0, 0]
    assert [event.time for event in events] == [rig.clock()] * 3
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert engine.events.seq == engine.status().journal.seq


async def test_an_entry_that_expired_is_deleted_when_its_slot_is_freed(rig: Rig) -> None:
    engine = rig.engine
    old = await put(engine, b"a", b"one", expires_at=int(rig.clock()) + 5)
    also = await put(engine, b"b", b"one", expires_at=int(rig.clock()) + 5)
    rig.clock.advance(10)
    assert len(engine.events.last(10)) == 2, "it is a miss from then on; whoever keeps an index knows its expiry"
    new = await put(engine, b"a", b"two")
    await engine.expire()
    await until(lambda: len(engine.events.last(10)) == 5)
    assert [told(event) for event in since(engine, 2)] == [
        ("deleted", "n", "expired", b"a", old.write_id),
        ("stored", "n", "", b"a", new.write_id),
        ("deleted", "n", "expired", b"", also.write_id),
    ]
    assert since(engine, 2)[1].replaced == 0


async def test_a_new_expiry_is_told_as_stored_again(rig: Rig) -> None:
    engine = rig.engine
    result = await put(engine, b"a", b"one")
    await engine.touch("n", b"a", expires_at=int(rig.clock()) + 77)
    [event] = since(engine, 1)
    assert told(event)[:3] == ("stored", "n", "")
    assert (event.write_id, event.replaced, event.expires_at) == (result.write_id, 0, int(rig.clock()) + 77)


async def test_an_eviction() -> None:
    with short_journal(256, reserve=8):
        rig = Rig(formatted_image(journal_blocks=256))
        try:
            engine = await rig.start()
            mirror = Mirror()
            mirror.follow(engine)
            for number in range(16):
                await put(engine, b"%d" % number, payload_of(number, 400_000))
                await engine.flush()
            mirror.follow(engine)
            evicted = [event for event in mirror.seen if event.reason == "evicted"]
            assert len(evicted) == engine.counters.evictions["evicted"] > 0
            assert mirror.resyncs == []
            await rig.stop()
        finally:
            cut_all()


async def test_a_quota(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=2))
    results = [await put(engine, b"%d" % number, b"x") for number in range(3)]
    reasons = [(event.reason, event.write_id) for event in engine.events.last(10) if event.kind == "deleted"]
    assert len(reasons) == 1
    assert reasons[0][0] == "quota"
    assert reasons[0][1] in {result.write_id for result in results}


async def test_a_wipe_is_one_event_for_all_of_the_namespace(rig: Rig) -> None:
    engine = rig.engine
    for number in range(5):
        await put(engine, b"%d" % number, b"x")
    other = await put(engine, b"0", b"x", namespace="m")
    mirror = Mirror()
    mirror.follow(engine)
    await engine.wipe_namespace("n")
    again = await put(engine, b"0", b"y")
    await until(lambda: engine.status().capacity.slots.live == 2)
    events = since(engine, 6)
    assert [told(event)[:2] for event in events] == [("wiped", "n"), ("stored", "n")]
    assert events[1].replaced == 0
    mirror.follow(engine)
    assert mirror.entries == {("n", again.write_id), ("m", other.write_id)}
    await rig.reopen()
    mirror.follow(rig.engine)
    assert mirror.resyncs == []


async def test_an_import_is_one_event(rig: Rig) -> None:
    """What it gathers is nobody's until it is bound, and then takes the place of what the namespace held; also for who
    comes back after a restart.
    """
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(parts=(PartSpec("w", "float32", (2,)),), schema_version=1))
    mirror, sleeper = Mirror(), Mirror()
    mirror.follow(engine)
    sleeper.follow(engine)
    for bound in (True, False):
        view = await engine.begin_import("n", ttl_seconds=60)
        upload = engine.begin_import_part(view.import_id, "w")
        try:
            await upload.add([b"1", b"2"], bytes(16))
            await upload.end()
        finally:
            upload.abort()
        if bound:
            await engine.commit_import(view.import_id, ImportPolicy.REJECT)
        else:
            await engine.abort_import(view.import_id)
        await engine.flush()
    mirror.follow(engine)
    kinds = [event.kind for event in mirror.seen]
    assert kinds == ["wiped", "imported"]
    assert len(mirror.entries) == 2
    await rig.crash()
    sleeper.follow(rig.engine)
    assert sleeper.resyncs == []
    assert [event.kind for event in sleeper.seen] == kinds


async def test_an_entry_found_corrupt_is_deleted_and_comes_back_by_retry(rig: Rig) -> None:
    engine = rig.engine
    result = await put(engine, b"a", b"one")
    found = engine._commit.published(engine._identity.digest(1, b"a"))
    assert found is not None
    offset = engine._index.table.slot_offset(found[0])
    rig.device.flip(offset + 50)
    with pytest.raises(EntryCorrupt):
        await engine.open_read("n", b"a")
    assert told(engine.events.last(1)[0]) == ("deleted", "n", "corrupt", b"", result.write_id)
    rig.device.flip(offset + 50)
    assert (await engine.retry()).restored == 1
    assert told(engine.events.last(1)[0]) == ("stored", "n", "recovery", b"", result.write_id)
    rig.device.flip(offset + 50)
    with pytest.raises(EntryCorrupt):
        await engine.open_read("n", b"a")
    before = len(engine.events.last(100))
    await engine.acknowledge()
    assert len(engine.events.last(100)) == before, "giving up the slot says nothing new"


async def test_d1_a_put_at_level_none_is_told_when_it_is_durable(rig: Rig) -> None:
    """D1: readers see it at once; an index elsewhere must not before a crash can't take it any more."""
    engine = rig.engine
    await put(engine, b"first", b"x")
    geometry = engine._index.geometry
    stop = geometry.journal_offset + geometry.journal_bytes
    fault = Fault(OpKind.WRITE, errno.EIO, start_byte=geometry.journal_offset, stop_byte=stop)
    rig.device.faults.append(fault)
    with pytest.raises(JournalUnavailable):
        await put(engine, b"refused", b"x")
    volatile = await put(engine, b"volatile", b"x", durability=Durability.NONE)
    await until(lambda: engine._commit.published(engine._identity.digest(1, b"volatile")) is not None)
    assert len(engine.events.last(100)) == 1
    rig.device.faults.clear()
    for _ in range(300):
        if not engine._journal.unavailable:
            break
        await asyncio.sleep(0.02)
    await until(lambda: len(engine.events.last(100)) == 2)
    assert told(engine.events.last(1)[0]) == ("stored", "n", "", b"volatile", volatile.write_id)
    rig.device.faults.clear()


async def test_a_batch_is_told_in_the_order_of_its_seqs(rig: Rig) -> None:
    engine = rig.engine
    mirror = Mirror()
    mirror.follow(engine)
    await asyncio.gather(*(put(engine, b"%d" % (n % 7), payload_of(n, 100 * n)) for n in range(60)))
    await engine.delete_many("n", [b"%d" % n for n in range(5)])
    mirror.follow(engine)
    assert len(live_entries(engine)) == 2
    assert mirror.resyncs == []


async def test_keys_are_read_as_long_as_the_record_is_there(rig: Rig) -> None:
    """The key of an evicted or expired entry is in the header of a slot that is not used again yet."""
    engine = rig.engine
    for number in range(4):
        await put(engine, b"key %d" % number, payload_of(number, 1000), expires_at=int(rig.clock()) + 5)
    rig.clock.advance(10)
    await engine.expire()
    await until(lambda: engine.status().capacity.slots.live == 0)
    expired = since(engine, 4)
    assert [event.key for event in expired] == [b""] * 4
    assert sorted(e.key for e in await engine.event_keys(expired)) == [b"key %d" % n for n in range(4)]
    await engine.flush()
    for number in range(300):  # the slots are used again, by records of other ids
        await put(engine, b"other %d" % number, payload_of(number, 1000))
    assert [event.key for event in await engine.event_keys(expired)] == [b""] * 4
    assert engine._arena.used_bytes == 0


def test_a_put_intent_without_a_key_is_told_without_one() -> None:
    assert PutIntent(1, 1, bytes(16), 1, 0, 0, 2, 0).key == b""
