"""Crash walks over races and overwrites: the whole run is recorded, then cut at every event (D1, D2, D3, B1)."""

from __future__ import annotations

import asyncio
import errno

import pytest

from storage.device.counters import OpKind
from storage.entries import Conditions, Durability
from storage.errors import EntryNotFound, JournalUnavailable, PreconditionFailed
from tests.support.crashes import examine_all
from tests.support.engines import CRASH_OPTIONS, Rig, formatted_image, payload_of, peek, short_journal, turns, until
from tests.support.model import Ledger
from tests.support.simulated_device import Fault, Write

pytestmark = pytest.mark.usefixtures("small_devices")
ABSENT_ONLY = Conditions(must_be_absent=True)


async def new_rig(slabs: int = 4) -> tuple[Rig, Ledger]:
    rig = Rig(formatted_image(slabs, journal_blocks=64), options=CRASH_OPTIONS)
    await rig.start()
    return rig, Ledger(rig.device)


def in_slabs(rig: Rig, kind: OpKind, offset_bytes: int) -> bool:
    geometry = rig.engine._index.geometry
    start = geometry.slabs_offset
    return kind is OpKind.WRITE and start <= offset_bytes < start + geometry.slabs * geometry.slab_bytes


def in_journal(rig: Rig, kind: OpKind, offset_bytes: int) -> bool:
    geometry = rig.engine._index.geometry
    start = geometry.journal_offset
    return kind is OpKind.WRITE and start <= offset_bytes < start + geometry.journal_bytes


def journal_writes(rig: Rig) -> list[Write]:
    return [w for w in rig.device.writes if in_journal(rig, OpKind.WRITE, w.offset_bytes)]


async def test_a_slow_put_draws_its_write_id_early_and_commits_late_with_a_checkpoint_between() -> None:
    """D2, D3: order goes by seq, which is given at the commit, not by write id, which is drawn at the start."""
    rig, ledger = await new_rig()
    engine = rig.engine
    slow_value = payload_of(1, 9000)
    with ledger._mutation(b"key", slow_value, Durability.JOURNAL) as slow:
        session = await engine.begin_put("n", b"key", len(slow_value))
        await session.write(slow_value[:5000])
        await ledger.put(engine, b"key", payload_of(2, 300))
        await engine.checkpoint()
        await ledger.put(engine, b"other", payload_of(3, 5000))
        await session.write(slow_value[5000:])
        result = await session.commit()
        session.abort()
    slow.started = rig.device.writes[-2].issued - 1  # it is decided when its row joins
    info = await engine.head("n", b"key")
    assert info.write_id == result.write_id
    assert await peek(engine, b"key") == slow_value
    await engine.checkpoint()
    assert await examine_all(rig, ledger) > 100


async def test_two_puts_of_one_key_commit_in_the_other_order_than_they_started() -> None:
    """D2: the one that committed last is the value, although its write id is the lower one."""
    rig, ledger = await new_rig()
    engine = rig.engine
    await ledger.put(engine, b"key", payload_of(0, 4500))
    first_value, second_value = payload_of(1, 4500), payload_of(2, 4500)
    rig.device.hold = lambda kind, offset, size: in_slabs(rig, kind, offset)
    first = asyncio.create_task(ledger.put(engine, b"key", first_value))
    await until(lambda: len(rig.device.held) == 1)
    second = asyncio.create_task(ledger.put(engine, b"key", second_value))
    await until(lambda: len(rig.device.held) == 2)
    rig.device.release(rig.device.held[1])
    second_result = await second
    rig.device.release_all()
    first_result = await first
    assert first_result.write_id < second_result.write_id
    assert await peek(engine, b"key") == first_value
    [_, first_mutation, second_mutation] = ledger.mutations[b"key"]
    first_mutation.started = second_mutation.ended  # committed after it, so it is the newer one
    await examine_all(rig, ledger)


async def test_a_key_is_deleted_while_a_put_of_it_is_in_flight() -> None:
    """D2, D3: the put commits after the delete and stands; the value deleted never comes back."""
    rig, ledger = await new_rig()
    engine = rig.engine
    old, new = payload_of(1, 5000), payload_of(2, 6000)
    await ledger.put(engine, b"key", old)
    rig.device.hold = lambda kind, offset, size: in_slabs(rig, kind, offset)
    late = asyncio.create_task(ledger.put(engine, b"key", new))
    await until(lambda: bool(rig.device.held))
    await ledger.delete(engine, b"key")
    assert await peek(engine, b"key") is None
    rig.device.release_all()
    result = await late
    assert result.created
    await engine.delete("n", b"key")
    with pytest.raises(EntryNotFound):
        await engine.delete("n", b"key")
    [_, put, delete] = ledger.mutations[b"key"]
    assert put.started < delete.started
    put.started = delete.ended
    last = ledger.mutations[b"key"]
    with ledger._mutation(b"key", None, Durability.JOURNAL) as second_delete:
        pass
    second_delete.started, second_delete.ended = put.ended, rig.device.now
    assert last[-1] is second_delete
    await examine_all(rig, ledger)


async def test_of_two_puts_if_absent_at_once_exactly_one_wins() -> None:
    """D3: decided when the rows join, also when both payloads are written at the same moment, and after a crash."""
    rig, ledger = await new_rig()
    engine = rig.engine
    values = [payload_of(n, 2000 + n) for n in range(2)]
    await ledger.put(engine, b"other", payload_of(5, 2000))
    rig.device.hold = lambda kind, offset, size: in_slabs(rig, kind, offset)
    puts = [asyncio.create_task(ledger.put(engine, b"key", v, conditions=ABSENT_ONLY)) for v in values]
    await until(lambda: len(rig.device.held) == 2)
    rig.device.release_all()
    results = await asyncio.gather(*puts, return_exceptions=True)
    refused = [r for r in results if isinstance(r, PreconditionFailed)]
    assert len(refused) == 1
    winner = values[0] if isinstance(results[1], PreconditionFailed) else values[1]
    assert await peek(engine, b"key") == winner
    assert refused[0].present_write_id == (await engine.head("n", b"key")).write_id
    [mutation] = ledger.mutations[b"key"]
    assert mutation.value == winner
    await examine_all(rig, ledger)


async def test_overwrite_delete_reuse_of_the_slot_by_another_key_checkpoints_and_crash() -> None:
    """B1, D2, D4: the slot's new owner is never taken for the old one, nor does the old one come back."""
    rig, ledger = await new_rig()
    engine = rig.engine
    await ledger.put(engine, b"a", payload_of(1, 1000))
    await ledger.put(engine, b"a", payload_of(2, 1000))
    await engine.flush()
    index = engine._index
    freed = set(index.slots.freed_unvoided)
    await ledger.delete(engine, b"a", Durability.FLUSH)
    await engine.flush()
    freed |= set(index.slots.freed_unvoided)
    assert len(freed) == 2
    await ledger.put(engine, b"b", payload_of(3, 1000))
    await ledger.put(engine, b"c", payload_of(4, 1000))
    owners = {engine._commit.published(engine._identity.digest(1, key))[0] for key in (b"b", b"c")}  # type: ignore[index]
    assert owners == freed, "both slots were used again"
    await engine.checkpoint()
    await ledger.put(engine, b"a", payload_of(5, 1000))
    await engine.checkpoint()
    await ledger.delete(engine, b"b")
    await engine.checkpoint()
    await engine.checkpoint()
    await examine_all(rig, ledger, every=2)


async def test_a_flush_acknowledged_value_superseded_at_level_journal_then_power_loss() -> None:
    """D1, R3: the flushed value or the newer one, whole; the loss of an unproven row is counted exactly."""
    rig, ledger = await new_rig()
    engine = rig.engine
    flushed, newer = payload_of(1, 5000), payload_of(2, 5000)
    await ledger.put(engine, b"key", flushed, Durability.FLUSH)
    begin = rig.device.now
    await ledger.put(engine, b"key", newer, Durability.JOURNAL)
    image = rig.device.crash_image(
        power_loss=True, keep=lambda write: in_journal(rig, OpKind.WRITE, write.offset_bytes)
    )
    await examine_all(rig, ledger, first=begin)
    lost = Rig(image, options=CRASH_OPTIONS, clock=rig.clock)
    await lost.start()
    assert lost.engine.status().recovery.lost_unflushed == 1
    assert await peek(lost.engine, b"key") == flushed
    await lost.stop()


async def test_an_older_version_does_not_come_back_when_the_slot_before_last_is_reused() -> None:
    """D2, D4: three versions at level journal, unflushed; whatever arrives, it is the flushed value or a newer one."""
    rig, ledger = await new_rig()
    engine = rig.engine
    await ledger.put(engine, b"key", payload_of(0, 500), Durability.FLUSH)
    begin = rig.device.now
    for version in range(1, 5):
        await ledger.put(engine, b"key", payload_of(version, 500))
        await ledger.put(engine, b"other %d" % version, payload_of(10 + version, 500))
    await ledger.delete(engine, b"key")
    await ledger.put(engine, b"key", payload_of(6, 500))
    await examine_all(rig, ledger, first=begin)


async def test_a_put_at_level_none_is_whole_or_absent_after_a_crash() -> None:
    """D1: a crash may lose it, never tear it, nor what it was to replace."""
    rig, ledger = await new_rig()
    engine = rig.engine
    await ledger.put(engine, b"key", payload_of(1, 70_000), Durability.FLUSH)
    await ledger.put(engine, b"key", payload_of(2, 90_000), Durability.NONE)
    await ledger.put(engine, b"new", payload_of(3, 20_000), Durability.NONE)
    await turns(50)
    assert await peek(engine, b"key") == payload_of(2, 90_000)
    await examine_all(rig, ledger)


@pytest.mark.parametrize("torn_block", [0, 1, 2, 3])
async def test_a_commit_of_four_blocks_with_one_block_torn(torn_block: int) -> None:
    """R3, D2: blocks before the torn one count, none behind it does; no row is a loss of unknown extent."""
    rig, ledger = await new_rig()
    engine = rig.engine
    await ledger.put(engine, b"before", payload_of(1, 100), Durability.FLUSH)
    held: list[int] = []

    def hold(kind: OpKind, offset_bytes: int, size_bytes: int) -> bool:
        if in_journal(rig, kind, offset_bytes):
            held.append(size_bytes // 4096)
            return True
        return False

    rig.device.hold = hold
    values = {b"key %d" % n: payload_of(n, 60 + n) for n in range(210)}
    puts = [asyncio.create_task(ledger.put(engine, key, value)) for key, value in values.items()]
    await until(lambda: sum(map(bool, held)) == 1 and rig.device.now > 2 * len(values))
    rig.device.release(rig.device.held[0])
    await until(lambda: bool(rig.device.held) or all(put.done() for put in puts))
    rig.device.release_all()
    await asyncio.gather(*puts)
    group = next(w for w in journal_writes(rig) if len(w.content) >= 4 * 4096)
    moment = group.issued + 1
    cut = torn_block * 4096
    image = rig.device.crash_image(
        moment,
        keep=lambda w: [(0, cut + 1024), (cut + 4096, len(w.content))] if w is group else True,
    )
    crashed = Rig(image, options=CRASH_OPTIONS, clock=rig.clock)
    await crashed.start()
    status = crashed.engine.status()
    assert not status.partial_recovery
    assert status.recovery.journal == "torn_tail"
    await ledger.check(crashed.engine, moment, power_loss=False)
    behind = [m.value for key in ledger.mutations for m in ledger.mutations[key] if m.ended > moment]
    found = [key for key, value in values.items() if await peek(crashed.engine, key) == value]
    # 62 rows lie in a block: what stood in the torn block and behind it is gone together.
    assert len(behind) > 200 - 62
    assert 0 <= len(found) - torn_block * 62 <= 62
    await crashed.stop()
    await rig.stop()


async def test_a_crash_a_short_new_life_and_another_crash() -> None:
    """D2, R3: blocks of the first life that lie behind the tail of the second never count again."""
    rig, ledger = await new_rig()
    engine = rig.engine
    await ledger.put(engine, b"key", payload_of(0, 200), Durability.FLUSH)
    for version in range(1, 9):
        await ledger.put(engine, b"key", payload_of(version, 200))
    dropped = journal_writes(rig)[-6]
    image = rig.device.crash_image(power_loss=True, keep=lambda w: w is not dropped)
    await rig.crash(image)
    second = await peek(rig.engine, b"key")
    assert second in {payload_of(version, 200) for version in range(9)}
    # The second life is shorter than the first: blocks of the first stand behind its end.
    second_ledger = Ledger(rig.device)
    with second_ledger._mutation(b"key", second, Durability.FLUSH) as known:
        pass
    known.started = known.ended = 0
    await second_ledger.put(rig.engine, b"key", payload_of(20, 200), Durability.FLUSH)
    await second_ledger.put(rig.engine, b"key", payload_of(21, 200))
    await examine_all(rig, second_ledger)


@pytest.mark.parametrize("lands", [False, True])
async def test_one_eio_in_the_middle_of_the_journal_is_retried_at_its_place(lands: bool) -> None:
    """D3, D4: nothing later is written before the failed block is; no block of acknowledged rows is rewritten."""
    rig, ledger = await new_rig()
    engine = rig.engine
    for version in range(3):
        await ledger.put(engine, b"key", payload_of(version, 200))
    rig.device.hold = lambda kind, offset, size: in_journal(rig, kind, offset)
    struck = asyncio.create_task(ledger.put(engine, b"key", payload_of(3, 200)))
    await until(lambda: bool(rig.device.held))
    [pending] = rig.device.held
    rig.device.hold = None
    rig.device.release(pending, errno.EIO, lands=lands)
    await struck
    for version in range(4, 7):
        await ledger.put(engine, b"key", payload_of(version, 200))
    places = [w.offset_bytes for w in journal_writes(rig) if not w.failed]
    assert len(places) == len(set(places)), "a block was written twice"
    assert engine.counters.journal_failures == 0
    await examine_all(rig, ledger)


@pytest.mark.parametrize("lands", [False, True])
async def test_a_journal_that_stays_broken_undoes_everything_queued(lands: bool) -> None:
    """D1, D3: what was refused is undone, its slots come back, puts at level none go on; later all is durable."""
    rig, ledger = await new_rig()
    engine = rig.engine
    await ledger.put(engine, b"key", payload_of(0, 200), Durability.FLUSH)
    geometry = engine._index.geometry
    start = geometry.journal_offset
    fault = Fault(OpKind.WRITE, errno.EIO, start_byte=start, stop_byte=start + geometry.journal_bytes)
    rig.device.faults.append(fault)
    if lands:
        original = rig.device._finish
        rig.device._finish = lambda pending, error=0, *, lands=False: original(pending, error, lands=True)  # type: ignore[method-assign]
    free_before = engine.status().capacity.slots.free
    with pytest.raises(JournalUnavailable):
        await ledger.put(engine, b"key", payload_of(1, 200))
    with pytest.raises(JournalUnavailable):
        await ledger.put(engine, b"fresh", payload_of(2, 200))
    assert engine.status().capacity.slots.free == free_before
    assert engine.status().capacity.slots.in_flight == 0
    assert await peek(engine, b"key") == payload_of(0, 200)
    assert await peek(engine, b"fresh") is None
    await ledger.put(engine, b"key", payload_of(3, 200), Durability.NONE)
    await turns()
    assert await peek(engine, b"key") == payload_of(3, 200)
    rig.device.faults.clear()
    while engine._journal.unavailable:
        await asyncio.sleep(0.01)
    await turns()
    await engine.flush()
    with ledger._mutation(b"key", payload_of(3, 200), Durability.FLUSH):
        pass  # what was accepted at level none is durable by now
    assert await peek(engine, b"key") == payload_of(3, 200)
    assert engine.status().capacity.slots.in_flight == 0
    await examine_all(rig, ledger)


async def test_a_slab_changes_its_class_twice() -> None:
    """R1, D2: rows and headers of an older generation of a slab are dead, in the journal, in pages and in slots."""
    rig, ledger = await new_rig(4)
    engine = rig.engine
    index = engine._index
    small, large = payload_of(1, 3000), payload_of(2, 100_000)
    keys = [b"key %d" % n for n in range(3)]

    async def fill(value: bytes) -> None:
        for key in keys:
            await ledger.put(engine, key, value)
        await engine.flush()

    async def empty() -> None:
        for key in keys:
            await ledger.delete(engine, key)
        await engine.flush()

    await fill(small)
    used = {index.table.place_of(engine._commit.published(engine._identity.digest(1, k))[0])[0] for k in keys}  # type: ignore[index]
    [slab] = used
    await empty()
    index.slots.unowned.clear()  # no slab but this one may be given
    begin = rig.device.now
    generations = {int(index.table.slab_generation[slab])}
    await fill(large)
    generations.add(int(index.table.slab_generation[slab]))
    await engine.checkpoint()
    await empty()
    await fill(small)
    generations.add(int(index.table.slab_generation[slab]))
    assert len(generations) == 3
    await ledger.put(engine, keys[0], payload_of(9, 1000))
    await engine.checkpoint()
    await ledger.delete(engine, keys[1])
    await examine_all(rig, ledger, first=begin)


async def test_a_checkpoint_copies_pages_while_keys_move_from_page_to_page() -> None:
    """D4, R2: of an overwrite one page may hold the new row and another one the old; no crash makes that damage."""
    with short_journal(256):
        await _pages_copied_while_keys_move()


async def _pages_copied_while_keys_move() -> None:
    rig = Rig(formatted_image(journal_blocks=256), options=CRASH_OPTIONS)
    engine, ledger = await rig.start(), Ledger(rig.device)
    for number in range(560):
        await ledger.put(engine, b"key %d" % number, payload_of(number, 100))
    await engine.checkpoint()
    for number in range(520, 560):
        await ledger.put(engine, b"key %d" % number, payload_of(number, 101))
    for number in (1, 300):  # dirty pages far from each other, so that they are copied apart
        await ledger.put(engine, b"key %d" % number, payload_of(number, 102))
    geometry = engine._index.geometry
    pages = [(geometry.page_offset(copy, 0), geometry.page_offset(copy, geometry.pages)) for copy in range(3)]
    rig.device.hold = lambda kind, offset, size: any(start <= offset < stop for start, stop in pages)
    rig.device.forget()
    ledger.mutations = {key: mutations[-1:] for key, mutations in ledger.mutations.items()}
    for [mutation] in ledger.mutations.values():
        mutation.started = mutation.ended = 0
        mutation.durability = Durability.FLUSH
    await engine.flush()
    ledger.device = rig.device
    checkpoint = asyncio.create_task(engine.checkpoint())
    await until(lambda: len(rig.device.held) == 2)
    for number in range(2, 8):
        await ledger.put(engine, b"key %d" % number, payload_of(number, 103))
        await ledger.delete(engine, b"key %d" % (number + 10))
    rig.device.release_all()
    await checkpoint
    checked = ledger.mutations
    ledger.mutations = {b"key %d" % number: checked[b"key %d" % number] for number in range(30)}
    await examine_all(rig, ledger, every=3)
