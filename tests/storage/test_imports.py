"""Imports: all or nothing, every byte supplied or declared, differences told exactly (B1, B2, D2, L1)."""

from __future__ import annotations

import asyncio
import errno
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.device.counters import OpKind
from storage.engine import Engine
from storage.errors import (
    EntryNotFound,
    FlushFailed,
    ImportBusy,
    ImportNotFound,
    ImportRefused,
    ImportTooLarge,
    JournalUnavailable,
    NamespaceWiped,
    ParameterInvalid,
    PartsInvalid,
    QuotaExceeded,
    SchemaConflict,
    ValueTooLarge,
    WriteFailed,
)
from storage.format.parts import bounds
from storage.import_session import ImportPolicy, ImportResult, ImportState
from storage.journal import Unit
from storage.key_lists import as_digests, missing_in, positions_in, repeated
from storage.namespace_settings import NamespaceSettings
from storage.schema import OnMissing, PartSpec
from tests.support.engines import Rig, check_accounts, get, put, until
from tests.support.simulated_device import Fault, torn

SPECS = (PartSpec("w", "float32", (8,)), PartSpec("m", "float32", (8,), 0.0), PartSpec("v", "float32", (8,), 0.25))
SCHEMA = NamespaceSettings(parts=SPECS, schema_version=1, on_missing=OnMissing.DEFAULT)


def row(part: str, key: int, version: int = 1) -> bytes:
    return struct.pack("<8f", key, "wmv".index(part), version, *range(5))


async def give(
    engine: Engine, import_id: str, part: str, keys: Sequence[int], *, step: int = 100, version: int = 1
) -> int:
    upload = engine.begin_import_part(import_id, part)
    try:
        for begin in range(0, len(keys), step):
            some = keys[begin : begin + step]
            await upload.add([b"%d" % key for key in some], b"".join(row(part, key, version) for key in some))
        return await upload.end()
    finally:
        upload.abort()


async def imported(
    engine: Engine, lists: Mapping[str, Sequence[int]], policy: ImportPolicy, *, version: int = 1
) -> ImportResult:
    view = await engine.begin_import("n", ttl_seconds=60, owner="trainer")
    for part, keys in lists.items():
        assert await give(engine, view.import_id, part, keys, version=version) == len(keys)
    return await engine.commit_import(view.import_id, policy)


async def content(engine: Engine, keys: Iterable[int]) -> dict[int, dict[str, bytes]]:
    """The parts of every key that is there."""
    found: dict[int, dict[str, bytes]] = {}
    for key in keys:
        try:
            info = await engine.head("n", b"%d" % key)
        except EntryNotFound:
            continue
        payload = await get(engine, b"%d" % key)
        found[key] = {name: payload[start:stop] for name, (start, stop) in bounds(info.parts).items()}
    return found


def default(part: str) -> bytes:
    return np.full(8, {"m": 0.0, "v": 0.25}[part], dtype="<f4").tobytes()


@pytest.fixture
async def engine(rig: Rig) -> Engine:
    await rig.engine.set_namespace("n", SCHEMA)
    return rig.engine


NESTED = {"w": range(300), "m": range(310), "v": range(325)}
"""As a torn snapshot has them: each list was saved a little later than the one before."""


async def test_differences_are_told_for_each_pair(engine: Engine) -> None:
    view = await engine.begin_import("n", ttl_seconds=60)
    for part, keys in NESTED.items():
        await give(engine, view.import_id, part, keys)
    found = {(d.has, d.lacks): (d.keys, d.examples) for d in await engine.import_differences(view.import_id)}
    assert {pair: count for pair, (count, _) in found.items()} == {("m", "w"): 10, ("v", "w"): 25, ("v", "m"): 15}
    assert found["m", "w"][1] == tuple(b"%d" % key for key in range(300, 305))
    await engine.abort_import(view.import_id)


async def test_reject_refuses_any_difference_and_changes_nothing(engine: Engine, rig: Rig) -> None:
    await put_one(engine, 7)
    view = await engine.begin_import("n", ttl_seconds=60)
    for part, keys in NESTED.items():
        await give(engine, view.import_id, part, keys)
    with pytest.raises(ImportRefused) as caught:
        await engine.commit_import(view.import_id, ImportPolicy.REJECT)
    assert caught.value.fields["incomplete"] == 25
    assert engine.namespace("n").entries == 1
    await engine.abort_import(view.import_id)
    await at_rest(rig)
    assert engine.status().capacity.slots.live == 1
    check_accounts(engine)


async def put_one(engine: Engine, key: int, version: int = 0) -> None:
    session = await engine.begin_put("n", b"%d" % key, 96, parts=[spec.part for spec in SPECS])
    await session.write(b"".join(row(part, key, version) for part in "wmv"))
    await session.commit()


async def at_rest(rig: Rig) -> None:
    await until(lambda: not rig.engine._index.namespaces.dying)
    await rig.engine.flush()
    assert rig.engine._arena.used_bytes == 0
    assert rig.engine.status().capacity.slots.in_flight == 0
    assert not rig.engine.status().holds


async def test_drop_keeps_complete_keys_only(engine: Engine, rig: Rig) -> None:
    await put_one(engine, 999)
    result = await imported(engine, NESTED, ImportPolicy.DROP)
    assert (result.namespace.entries, result.dropped, result.filled) == (300, 25, {})
    expected = {key: {part: row(part, key) for part in "wmv"} for key in range(300)}
    assert await content(engine, [*range(330), 999]) == expected
    await at_rest(rig)
    check_accounts(engine)
    await rig.crash()
    assert await content(rig.engine, [*range(330), 999]) == expected
    check_accounts(rig.engine)


async def test_default_fills_with_the_declared_number_and_counts(engine: Engine, rig: Rig) -> None:
    lists = {"w": range(325), "m": range(300), "v": range(310)}
    result = await imported(engine, lists, ImportPolicy.DEFAULT)
    assert (result.namespace.entries, result.dropped) == (325, 0)
    assert result.filled == {"w": 0, "m": 25, "v": 15}
    expected = {
        key: {part: row(part, key) if key in lists[part] else default(part) for part in "wmv"} for key in range(325)
    }
    assert await content(engine, range(330)) == expected
    before = engine.namespace("n")
    again = await imported(engine, lists, ImportPolicy.DEFAULT)
    assert again.filled == result.filled
    assert await content(engine, range(330)) == expected, "twice: identical"
    assert engine.namespace("n") == before
    await at_rest(rig)
    check_accounts(engine)


async def test_a_part_without_a_default_cannot_be_filled(engine: Engine) -> None:
    view = await engine.begin_import("n", ttl_seconds=60)
    for part, keys in NESTED.items():
        await give(engine, view.import_id, part, keys)
    with pytest.raises(PartsInvalid) as caught:
        await engine.commit_import(view.import_id, ImportPolicy.DEFAULT)
    assert caught.value.fields["part"] == "w"
    await engine.abort_import(view.import_id)


async def test_parts_that_never_came(engine: Engine) -> None:
    view = await engine.begin_import("n", ttl_seconds=60)
    await give(engine, view.import_id, "w", range(10))
    for policy in (ImportPolicy.REJECT, ImportPolicy.DROP):
        with pytest.raises(ImportRefused) as caught:
            await engine.commit_import(view.import_id, policy)
        assert caught.value.fields["missing_parts"] == ["m", "v"]
    result = await engine.commit_import(view.import_id, ImportPolicy.DEFAULT)
    assert result.filled == {"w": 0, "m": 10, "v": 10}
    assert (await content(engine, [3]))[3] == {"w": row("w", 3), "m": default("m"), "v": default("v")}


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


async def test_an_import_under_way_is_gone_after_a_restart(engine: Engine, rig: Rig) -> None:
    view = await engine.begin_import("n", ttl_seconds=60)
    await give(engine, view.import_id, "w", range(500))
    assert engine.status().holds[0].kind == "import"
    engine = await rig.reopen()
    with pytest.raises(ImportNotFound):
        engine.import_view(view.import_id)
    await at_rest(rig)
    assert engine.status().capacity.slots.live == 0
    assert engine.namespace("n").settings == SCHEMA
    check_accounts(engine)


async def test_keys_twice_and_rows_too_few_are_refused_with_counts(engine: Engine, rig: Rig) -> None:
    view = await engine.begin_import("n", ttl_seconds=60)
    with pytest.raises(ImportRefused) as caught:
        await give(engine, view.import_id, "w", [1, 2, 3, 2, 1, 4])
    assert caught.value.fields == {"part": "w", "repeated": 2}
    upload = engine.begin_import_part(view.import_id, "w")
    with pytest.raises(ImportBusy):
        engine.begin_import_part(view.import_id, "m")
    with pytest.raises(PartsInvalid, match="2 keys with 96 bytes"):
        await upload.add([b"1", b"2"], bytes(96))
    upload.abort()
    with pytest.raises(PartsInvalid, match="not in the schema"):
        engine.begin_import_part(view.import_id, "x")
    await give(engine, view.import_id, "w", [1, 2])
    with pytest.raises(ImportBusy):
        engine.begin_import_part(view.import_id, "w")
    assert [(part.name, part.keys, part.complete) for part in engine.import_view(view.import_id).parts] == [
        ("w", 2, True)
    ]
    await engine.abort_import(view.import_id)
    with pytest.raises(ImportNotFound):
        await engine.abort_import(view.import_id)
    await at_rest(rig)


async def test_an_import_needs_a_schema(rig: Rig) -> None:
    await put(rig.engine, b"key", b"v")
    with pytest.raises(ParameterInvalid):
        await rig.engine.begin_import("n", ttl_seconds=60)


async def test_l1_imports_are_bounded(engine: Engine, rig: Rig) -> None:
    for ttl_seconds in (0, -1, 1e9, float("nan")):
        with pytest.raises(ParameterInvalid):
            await engine.begin_import("n", ttl_seconds=ttl_seconds)
    views = [await engine.begin_import("n", ttl_seconds=60) for _ in range(4)]
    with pytest.raises(ImportTooLarge):
        await engine.begin_import("n", ttl_seconds=60)
    with mock.patch("storage.imports.IMPORT_KEYS_MAX", 10), pytest.raises(ImportTooLarge):
        await give(engine, views[0].import_id, "w", range(11))
    with mock.patch("storage.imports.IMPORT_KEY_BYTES_MAX", 10), pytest.raises(ImportTooLarge):
        await give(engine, views[0].import_id, "w", range(11))
    for view in views:
        await engine.abort_import(view.import_id)
    await at_rest(rig)


async def test_an_import_that_nobody_uses_ends(rig: Rig) -> None:
    now = [1000.0]
    with mock.patch("storage.assembly.time.monotonic", side_effect=lambda: now[0]):
        engine = await rig.reopen()
        await engine.set_namespace("n", SCHEMA)
        view = await engine.begin_import("n", ttl_seconds=10)
        await give(engine, view.import_id, "w", range(100))
        now[0] += 9
        await give(engine, view.import_id, "m", range(100))
        now[0] += 9
        assert engine.import_view(view.import_id).state is ImportState.OPEN
        now[0] += 2
        await engine.expire()
        with pytest.raises(ImportNotFound):
            engine.import_view(view.import_id)
        await until(lambda: engine._journal.idle)
        await at_rest(rig)
        assert not engine._index.namespaces.importing()
        check_accounts(engine)


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


async def replacement(engine: Engine, keys: range) -> str:
    """An import of a second version of all there is."""
    await imported(engine, dict.fromkeys("wmv", keys), ImportPolicy.REJECT)
    view = await engine.begin_import("n", ttl_seconds=60)
    for part in "wmv":
        await give(engine, view.import_id, part, keys, version=2)
    return view.import_id


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


async def test_l1_a_default_larger_than_any_record_is_never_made(engine: Engine) -> None:
    huge = PartSpec("m", "uint8", (1 << 20, 1 << 20), 0)
    await engine.set_namespace("n", NamespaceSettings(parts=(SPECS[0], huge), schema_version=2))
    view = await engine.begin_import("n", ttl_seconds=60)
    await give(engine, view.import_id, "w", range(2))
    with pytest.raises(ValueTooLarge):
        await engine.commit_import(view.import_id, ImportPolicy.DEFAULT)
    await engine.abort_import(view.import_id)


async def test_what_could_not_be_wiped_when_an_import_ended_is_wiped_later(engine: Engine, rig: Rig) -> None:
    view = await engine.begin_import("n", ttl_seconds=60)
    with mock.patch.object(engine._commit, "wipe", side_effect=JournalUnavailable("away")):
        with pytest.raises(JournalUnavailable):
            await engine.abort_import(view.import_id)
        await engine.expire()
    assert engine._index.namespaces.importing()
    await until(lambda: not engine._parts.imports._dropping)
    await engine.expire()
    await until(lambda: not engine._index.namespaces.importing())
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


# -- lists of keys ---------------------------------------------------------------------------------------------------

digests = st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=40)


@given(digests, st.lists(st.integers(0, 39)))
def test_repeated_keys(unique: list[bytes], again: list[int]) -> None:
    listed = unique + [unique[index] for index in again if index < len(unique)]
    seen: set[bytes] = set()
    expected = 0
    for digest in listed:
        expected += digest in seen
        seen.add(digest)
    assert len(repeated(as_digests(b"".join(listed)))) == expected


@given(digests, digests)
def test_positions_and_missing_keys(one: list[bytes], other: list[bytes]) -> None:
    other = [*one[::3], *(digest for digest in other if digest not in one)]
    wanted, listed = as_digests(b"".join(one)), as_digests(b"".join(other))
    assert positions_in(wanted, listed).tolist() == [other.index(d) if d in other else -1 for d in one]
    assert missing_in(wanted, listed).tolist() == [index for index, d in enumerate(one) if d not in other]
