"""Commits of imports: all or nothing, whatever fails and whoever leaves (B1, D2, D3, R4)."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from storage.device.counters import OpKind
from storage.engine import Engine
from storage.errors import FlushFailed, NamespaceWiped, QuotaExceeded, SchemaConflict, WriteFailed
from storage.imports.session import ImportPolicy
from storage.journal import Unit
from tests.storage.imports.training import SCHEMA, SPECS, at_rest, content, give, imported, put_one, replacement, row
from tests.support.engines import Rig, check_accounts, put, until
from tests.support.simulated_device import Fault, torn


async def test_nothing_is_visible_before_the_commit_nor_to_other_readers_during_it(engine: Engine, rig: Rig) -> None:
    """All or nothing, at every moment of a commit, for readers and for crashes."""
    for key in range(20):
        await put_one(engine, key, version=5)
    await engine.flush()
    old = await content(engine, range(700))
    view = await engine.begin_import("n", ttl_seconds=60)
    for part in "wmv":
        await give(engine, view.import_id, part, range(10, 610))
    assert await content(engine, range(700)) == old
    first = rig.device.now
    await engine.commit_import(view.import_id, ImportPolicy.REJECT)
    last = rig.device.now
    new = {key: {part: row(part, key) for part in "wmv"} for key in range(10, 610)}
    assert await content(engine, range(700)) == new
    rng = random.Random(1)
    moments = [*range(first, last + 1, max(1, (last - first) // 12)), *range(last - 12, last + 1)]
    images = [rig.device.crash_image(moment) for moment in moments]
    images += [rig.device.crash_image(moment, power_loss=True, keep=torn(rng)) for moment in moments]
    seen = set()
    for image in images:
        await rig.crash(image)
        found = await content(rig.engine, range(700))
        assert found in (old, new)
        seen.add(len(found))
        await at_rest(rig)
        assert rig.engine.status().capacity.slots.live == len(found), "an interrupted import leaves no trace"
        assert not rig.engine.status().partial_recovery
        check_accounts(rig.engine)
    assert seen == {20, 600}


async def test_d3_a_commit_that_fails_leaves_the_import_open(engine: Engine, rig: Rig) -> None:
    await put_one(engine, 7)
    view = await engine.begin_import("n", ttl_seconds=60)
    for part in "wmv":
        await give(engine, view.import_id, part, range(400))
    geometry = engine._index.geometry
    writes = engine._device.counters.write.operations
    fault = Fault(OpKind.WRITE, errno.EIO, geometry.slabs_offset, times=1, number=writes + 300)
    rig.device.faults.append(fault)
    with pytest.raises(WriteFailed):
        await engine.commit_import(view.import_id, ImportPolicy.REJECT)
    assert await content(engine, range(400)) == {7: {part: row(part, 7, 0) for part in "wmv"}}
    rig.device.faults.clear()
    result = await engine.commit_import(view.import_id, ImportPolicy.REJECT)
    assert result.namespace.entries == 400
    assert await content(engine, range(400)) == {k: {part: row(part, k) for part in "wmv"} for k in range(400)}
    await at_rest(rig)
    check_accounts(engine)


async def test_r4_an_import_whose_commit_a_journal_gap_took_stays_until_the_loss_is_accepted(
    engine: Engine, rig: Rig
) -> None:
    import_id = await replacement(engine, range(50))
    bind, bound = engine._commit.bind_import, []

    def noted(*arguments: Any) -> Unit:
        unit = bind(*arguments)
        bound.append(unit)
        return unit

    with mock.patch.object(engine._commit, "bind_import", side_effect=noted):
        await engine.commit_import(import_id, ImportPolicy.REJECT)
    [unit] = bound
    assert unit.done is not None
    offset = engine._index.geometry.journal_block_offset(unit.done.result())
    await until(lambda: not engine._index.namespaces.dying)
    await put(engine, b"later", b"x", namespace="other")
    await engine.flush()
    await put(engine, b"latest", b"x", namespace="other")  # its block says that all before was flushed
    image = rig.device.crash_image()
    image.write(offset + 100, b"lost")
    for _ in range(2):
        engine = await rig.crash(image)
        assert engine.status().recovery.journal == "gap"
        assert engine.status().partial_recovery
        await engine.expire()
        [gathered] = engine._index.namespaces.importing()
        assert gathered.entries == 50
        image = rig.device.crash_image()
    await engine.acknowledge()
    await engine.expire()
    await until(lambda: not engine._index.namespaces.importing())
    await at_rest(rig)


async def test_d2_what_the_journal_has_taken_stays_although_the_flush_behind_it_fails(engine: Engine, rig: Rig) -> None:
    import_id = await replacement(engine, range(50))
    bind = engine._commit.bind_import

    def failing(*arguments: Any) -> Unit:
        rig.device.faults.append(Fault(OpKind.FLUSH, errno.EIO, times=1))
        return bind(*arguments)

    with mock.patch.object(engine._commit, "bind_import", failing), pytest.raises(FlushFailed):
        await engine.commit_import(import_id, ImportPolicy.REJECT)
    assert await content(engine, range(50)) == {k: {part: row(part, k, 2) for part in "wmv"} for k in range(50)}
    assert not engine.imports()
    await at_rest(rig)
    await rig.crash()
    assert rig.engine.namespace("n").entries == 50


@pytest.mark.parametrize("turns", range(8))
async def test_d2_who_leaves_a_commit_takes_nothing_back(engine: Engine, rig: Rig, turns: int) -> None:
    """At whatever moment between joining the journal and the answer."""
    import_id = await replacement(engine, range(50))
    bind = engine._commit.bind_import
    loop = asyncio.get_running_loop()

    def leave(after: int) -> None:
        if after:
            loop.call_soon(leave, after - 1)
        else:
            commit.cancel()

    def binding(*arguments: Any) -> Unit:
        leave(turns)
        return bind(*arguments)

    with mock.patch.object(engine._commit, "bind_import", binding):
        commit = asyncio.ensure_future(engine.commit_import(import_id, ImportPolicy.REJECT))
        await asyncio.wait([commit])
    await until(lambda: not engine.imports())
    assert await content(engine, range(50)) == {k: {part: row(part, k, 2) for part in "wmv"} for k in range(50)}
    await at_rest(rig)


async def test_b4_an_import_of_another_schema_is_refused(engine: Engine, rig: Rig) -> None:
    import_id = await replacement(engine, range(5))
    await engine.set_namespace("n", replace(SCHEMA, parts=SPECS[:2], schema_version=2))
    with pytest.raises(SchemaConflict):
        await engine.commit_import(import_id, ImportPolicy.REJECT)
    await engine.abort_import(import_id)
    assert len(await content(engine, range(5))) == 5
    await at_rest(rig)


async def test_the_quota_and_a_wipe_decide_about_a_commit(engine: Engine) -> None:
    view = await engine.begin_import("n", ttl_seconds=60)
    for part in "wmv":
        await give(engine, view.import_id, part, range(50))
    await engine.set_namespace("n", replace(SCHEMA, quota_entries=49))
    with pytest.raises(QuotaExceeded):
        await engine.commit_import(view.import_id, ImportPolicy.REJECT)
    await engine.set_namespace("n", replace(SCHEMA, quota_entries=50))
    await engine.wipe_namespace("n")
    with pytest.raises(NamespaceWiped):
        await engine.commit_import(view.import_id, ImportPolicy.REJECT)
    await engine.set_namespace("n", SCHEMA)
    assert (await engine.commit_import(view.import_id, ImportPolicy.REJECT)).namespace.entries == 50


async def test_what_is_gathered_is_not_evicted(engine: Engine, rig: Rig) -> None:
    """A full device, and a commit among puts that evict."""
    view = await engine.begin_import("n", ttl_seconds=60)
    for part in "wmv":
        await give(engine, view.import_id, part, range(300))

    async def fill() -> None:
        for number in range(1500):
            await put(engine, b"filler %d" % (number % 1100), bytes(3500), namespace="m")

    filling = asyncio.create_task(fill())
    result = await engine.commit_import(view.import_id, ImportPolicy.REJECT)
    assert result.namespace.entries == 300
    await filling
    check_accounts(engine)


async def test_events_tell_of_the_commit_alone(engine: Engine) -> None:
    await put_one(engine, 7)
    before = engine.events.head
    await imported(engine, {part: range(20) for part in "wmv"}, ImportPolicy.REJECT)
    kinds = [(event.kind, event.namespace) for event in engine.events.last(100)][-(engine.events.head - before) :]
    assert sorted(kinds) == [("imported", "n"), ("wiped", "n")]


async def test_a_record_of_an_import_lives_as_long_as_a_put_that_names_no_time(rig: Rig, engine: Engine) -> None:
    """The namespace's own time to live, as it is at the commit and counted from it; a stream of rows names none."""
    await imported(engine, {name: range(3) for name in "wmv"}, ImportPolicy.REJECT)
    rig.clock.advance(10_000_000)
    assert len(await content(engine, range(3))) == 3, "without a default nothing expires"
    view = await engine.begin_import("n", ttl_seconds=60, owner="trainer")
    for part in "wmv":
        await give(engine, view.import_id, part, range(3))
    await engine.set_namespace("n", replace(SCHEMA, default_ttl_seconds=100))
    rig.clock.advance(50)
    await engine.commit_import(view.import_id, ImportPolicy.REJECT)
    assert [(await engine.head("n", b"%d" % key)).expires_at for key in range(3)] == [int(rig.clock()) + 100] * 3
    rig.clock.advance(99)
    assert len(await content(engine, range(3))) == 3
    rig.clock.advance(1)
    assert await content(engine, range(3)) == {}
    await engine.expire()
    check_accounts(engine)


async def test_jitter_spreads_the_records_of_an_import_too(rig: Rig, engine: Engine) -> None:
    await engine.set_namespace("n", replace(SCHEMA, default_ttl_seconds=100_000, ttl_jitter_percent=50))
    await imported(engine, {name: range(40) for name in "wmv"}, ImportPolicy.REJECT)
    expiries = {(await engine.head("n", b"%d" % key)).expires_at for key in range(40)}
    assert len(expiries) > 20
    assert min(expiries) >= int(rig.clock()) + 50_000
