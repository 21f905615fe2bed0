"""Namespaces: settings that survive, quotas decided when a put joins, wipes by one record (A1, A2, D2)."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.device.counters import OpKind
from storage.entries import Conditions, Durability
from storage.errors import (
    JournalUnavailable,
    NamespaceNotFound,
    NamespaceWiped,
    ParameterInvalid,
    QuotaExceeded,
    SpaceHeld,
)
from storage.format.catalogue import NamespaceRecord, encode_record
from storage.format.geometry import CATALOGUE_NAMESPACE_BYTES
from storage.format.layout import Undecodable
from storage.namespace_settings import (
    CODES,
    DEFAULT_SETTINGS,
    NamespaceSettings,
    QuotaMode,
    check_settings,
    decode_settings,
    encode_settings,
    expiry_of,
)
from tests.support.engines import Rig, check_accounts, payload_of, peek, put, until
from tests.support.simulated_device import Fault

SETTINGS = NamespaceSettings(
    quota_bytes=1 << 20,
    quota_entries=100,
    quota_mode=QuotaMode.HARD,
    default_ttl_seconds=3600,
    sliding_ttl=True,
    ttl_jitter_percent=10,
    default_durability=Durability.FLUSH,
    eviction_weight_percent=50,
)
SLOT = 4096


# -- settings --------------------------------------------------------------------------------------------------------


@given(
    st.builds(
        NamespaceSettings,
        quota_bytes=st.none() | st.integers(1, 1 << 62),
        quota_entries=st.none() | st.integers(1, 1 << 40),
        quota_mode=st.sampled_from(QuotaMode),
        default_ttl_seconds=st.integers(1, 2**31 - 1),
        sliding_ttl=st.booleans(),
        ttl_jitter_percent=st.integers(0, 100),
        default_durability=st.none() | st.sampled_from(Durability),
        eviction_weight_percent=st.integers(1, 1000),
    )
)
def test_b4_settings_round_trip(settings: NamespaceSettings) -> None:
    check_settings(settings)
    assert decode_settings(encode_settings(settings)) == settings


@pytest.mark.parametrize(
    "encoded",
    [
        {"xx": 1},
        {"quota_bytes": 1},
        {"qb": 0},
        {"qb": "1"},
        {"qm": "medium"},
        {"qm": 1},
        {"st": 2},
        {"st": 1},
        {"tj": 101},
        {"dd": "both"},
        {"ew": 0},
    ],
)
def test_b4_odd_settings_are_damage(encoded: dict[str, int | str]) -> None:
    with pytest.raises(Undecodable):
        decode_settings(encoded)


def test_l1_a_namespace_with_all_settings_fits_its_share_of_the_catalogue() -> None:
    settings = NamespaceSettings(1 << 62, 1 << 40, QuotaMode.HARD, 2**31 - 1, True, 100, Durability.JOURNAL, 1000)
    record = NamespaceRecord((1 << 63) - 1, 0xFFFFFFFF, "n" * 128, encode_settings(settings))
    assert set(record.settings) == set(CODES.values()) - {"ps", "om", "sv", "im"}, "all but a schema"
    assert len(encode_record(record)) <= CATALOGUE_NAMESPACE_BYTES


def test_an_expiry_is_drawn_from_the_last_part_of_the_ttl() -> None:
    settings = replace(DEFAULT_SETTINGS, default_ttl_seconds=1000, ttl_jitter_percent=20)
    drawn = {expiry_of(settings, None, 0.0) for _ in range(300)}
    assert min(drawn) >= 800
    assert max(drawn) <= 1000
    assert len(drawn) > 50
    assert expiry_of(DEFAULT_SETTINGS, None, 0.0) == 0
    assert expiry_of(DEFAULT_SETTINGS, 7, 0.5) == 8
    assert expiry_of(replace(settings, ttl_jitter_percent=100), 1, 0.0) >= 1


@pytest.mark.parametrize("how", ["checkpoint", "journal", "killed"])
async def test_settings_survive(rig: Rig, how: str) -> None:
    _, created = await rig.engine.set_namespace("n", NamespaceSettings(quota_entries=5))
    assert created
    _, created = await rig.engine.set_namespace("n", SETTINGS)
    assert not created
    engine = await (rig.crash() if how == "killed" else rig.reopen(checkpoint=how == "checkpoint"))
    assert engine.namespace("n").settings == SETTINGS
    assert engine.status().namespaces["n"].quota_bytes == SETTINGS.quota_bytes
    assert not engine.status().partial_recovery


async def test_settings_that_no_namespace_can_have_are_refused(rig: Rig) -> None:
    with pytest.raises(ParameterInvalid, match="default_ttl_seconds"):
        await rig.engine.set_namespace("n", NamespaceSettings(sliding_ttl=True))
    with pytest.raises(ParameterInvalid, match="eviction_weight_percent"):
        await rig.engine.set_namespace("n", NamespaceSettings(eviction_weight_percent=0))
    with pytest.raises(NamespaceNotFound):
        rig.engine.namespace("n")


async def test_many_create_one_namespace_at_once(rig: Rig) -> None:
    results = await asyncio.gather(
        *(rig.engine.set_namespace("n", SETTINGS) for _ in range(8)),
        *(put(rig.engine, b"%d" % i, b"v") for i in range(8)),
    )
    assert len(rig.engine.namespaces()) == 1
    assert rig.engine.namespace("n").settings == SETTINGS
    assert len(results) == 16


# -- quotas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [NamespaceSettings(quota_entries=10), NamespaceSettings(quota_bytes=10 * SLOT)],
    ids=["entries", "bytes"],
)
async def test_a2_a_soft_quota_lets_own_entries_make_room(rig: Rig, settings: NamespaceSettings) -> None:
    engine = rig.engine
    await engine.set_namespace("n", settings)
    await put(engine, b"neighbour", b"stays", namespace="m")
    for number in range(40):
        await put(engine, b"key %d" % number, payload_of(number, 3000))
        assert engine.namespace("n").entries <= 10
        assert engine.namespace("n").used_bytes <= 10 * SLOT
        assert await peek(engine, b"key 0") is not None or number >= 10  # read, so it outlives those that were not
    assert engine.namespace("n").entries == 10
    assert await peek(engine, b"neighbour", namespace="m") == b"stays"
    assert await peek(engine, b"key 39") == payload_of(39, 3000)
    assert engine.counters.evictions["quota"] == 30
    assert engine.counters.evictions["evicted"] == 0
    check_accounts(engine)


async def test_a2_what_was_read_outlives_what_was_not(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=10))
    for number in range(60):
        await put(engine, b"key %d" % number, b"v")
        assert await peek(engine, b"key 3") is not None or number < 3
    await rig.reopen()
    for number in range(60, 80):
        await put(rig.engine, b"key %d" % number, b"v")
        assert await peek(rig.engine, b"key 3") == b"v", "also after a restart, that makes the queue anew"


async def test_a2_a_hard_quota_refuses(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=3, quota_mode=QuotaMode.HARD))
    for number in range(3):
        await put(engine, b"key %d" % number, b"v")
    with pytest.raises(QuotaExceeded):
        await engine.begin_put("n", b"one more", 1)
    assert engine.status().capacity.slots.in_flight == 0
    await put(engine, b"key 1", b"replaced: no entry more")
    await engine.delete("n", b"key 2")
    await put(engine, b"one more", b"v")
    assert engine.namespace("n").entries == 3
    check_accounts(engine)


@pytest.mark.parametrize("mode", list(QuotaMode))
async def test_a2_many_puts_at_once_never_pass_the_quota(rig: Rig, mode: QuotaMode) -> None:
    """It is decided when they join, against everything queued: also where all were let begin."""
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=5, quota_mode=mode))
    sessions = [await engine.begin_put("n", b"key %d" % number, 1) for number in range(40)]
    for session in sessions:
        await session.write(b"v")
    results = await asyncio.gather(*(session.commit() for session in sessions), return_exceptions=True)
    for session in sessions:
        session.abort()
    refused = [result for result in results if isinstance(result, QuotaExceeded)]
    assert len(refused) == (35 if mode is QuotaMode.HARD else 0)
    assert engine.namespace("n").entries == 5
    check_accounts(engine)


async def test_a2_a_value_larger_than_the_quota_is_refused_in_either_mode(rig: Rig) -> None:
    await rig.engine.set_namespace("n", NamespaceSettings(quota_bytes=2 * SLOT))
    with pytest.raises(QuotaExceeded):
        await rig.engine.begin_put("n", b"key", 100_000)


@pytest.mark.parametrize("mode", list(QuotaMode))
async def test_a2_a_lowered_quota_is_reached_before_it_is_answered(rig: Rig, mode: QuotaMode) -> None:
    engine = rig.engine
    for number in range(200):
        await put(engine, b"key %d" % number, b"v")
    view, _ = await engine.set_namespace("n", NamespaceSettings(quota_entries=20, quota_mode=mode))
    assert view.entries == 20
    assert engine.counters.evictions["quota"] == 180
    await rig.crash()
    assert rig.engine.namespace("n").entries == 20
    check_accounts(rig.engine)


async def test_d3_a_failed_group_takes_the_charges_back(rig: Rig) -> None:
    """A2, D3: what was queued and undone counts no more against the quota."""
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=2, quota_mode=QuotaMode.HARD))
    journal = engine._index.geometry.journal_block_offset(0)
    end = journal + engine._index.geometry.journal_blocks * 4096
    rig.device.faults.append(Fault(OpKind.WRITE, errno.EIO, journal, end))
    with pytest.raises(JournalUnavailable):
        await put(engine, b"key", b"v")
    assert engine._index.namespaces.by_name["n"].joined_entries == 0
    rig.device.faults.clear()
    await asyncio.wait_for(_until_available(rig), 10)
    await put(engine, b"key", b"v")
    await put(engine, b"other", b"v")
    check_accounts(engine)


async def _until_available(rig: Rig) -> None:
    while rig.engine._journal.unavailable:
        await asyncio.sleep(0.01)


async def test_d3_victims_of_a_failed_group_can_be_victims_again(rig: Rig) -> None:
    """A2, D3: a soft quota goes on making room after the journal was away."""
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=3))
    for number in range(5):
        await put(engine, b"key %d" % number, b"v")
    journal = engine._index.geometry.journal_block_offset(0)
    end = journal + engine._index.geometry.journal_blocks * 4096
    rig.device.faults.append(Fault(OpKind.WRITE, errno.EIO, journal, end))
    failed = await asyncio.gather(*(put(engine, b"x%d" % n, b"v") for n in range(3)), return_exceptions=True)
    assert [type(error) for error in failed] == [JournalUnavailable] * 3
    rig.device.faults.clear()
    await asyncio.wait_for(_until_available(rig), 10)
    for number in range(5):
        await put(engine, b"y%d" % number, b"v")
    assert engine.namespace("n").entries == 3
    check_accounts(engine)


async def test_l1_overwrites_within_a_quota_take_no_memory(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=3))
    for number in range(5):
        await put(engine, b"key %d" % number, b"v")
    queues = engine._commit.quotas._queues
    assert len(queues) == 1
    for _ in range(1100):
        await put(engine, b"key 4", b"v")
    assert sum(len(queue) for queue in queues.values()) <= 1024
    await put(engine, b"one more", b"v")
    assert engine.namespace("n").entries == 3


async def test_l3_of_many_held_entries_the_few_that_are_not_make_room(rig: Rig) -> None:
    """A2, L3: for puts, and for a quota that is lowered."""
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=60))
    for number in range(60):
        await put(engine, b"key %d" % number, b"v")
    snapshot = await engine.take_snapshot("n", ttl_seconds=60)
    with pytest.raises(SpaceHeld):
        await put(engine, b"one more", b"v")
    await put(engine, b"key 58", b"w")
    await put(engine, b"key 59", b"w")
    for number in range(5):
        await put(engine, b"new %d" % number, b"v")
    assert engine.namespace("n").entries == 60
    view, _ = await engine.set_namespace("n", NamespaceSettings(quota_entries=20))
    assert view.entries == 58
    engine.end_snapshot(snapshot.snapshot_id)
    view, _ = await engine.set_namespace("n", NamespaceSettings(quota_entries=19))
    assert view.entries == 19
    check_accounts(engine)


async def test_l3_what_is_read_again_and_again_goes_where_the_rest_is_held(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", NamespaceSettings(quota_entries=2))
    await put(engine, b"held", b"v")
    await put(engine, b"read", b"v")
    engine.lease("n", [b"held"], ttl_seconds=60)
    for number in range(70):
        for _ in range(4):
            await peek(engine, b"read" if not number else b"key %d" % (number - 1))
        await put(engine, b"key %d" % number, b"v")
    assert await peek(engine, b"held") == b"v"
    assert engine.namespace("n").entries == 2


async def test_a2_quotas_changed_while_many_put(rig: Rig) -> None:
    """Usage equals a recount, nobody is above a hard limit, and no neighbour is evicted for it."""
    engine, rng = rig.engine, random.Random(4)
    names = [f"tenant-{n}" for n in range(6)]
    for name in names:
        await engine.set_namespace(name, NamespaceSettings(quota_entries=20))
    await put(engine, b"key", b"stays", namespace="neighbour")

    async def write(name: str) -> None:
        for number in range(150):
            try:
                await put(engine, b"%d" % rng.randrange(60), payload_of(number, rng.choice([1, 3000])), namespace=name)
            except QuotaExceeded:
                assert engine.namespace(name).settings.quota_mode is QuotaMode.HARD
            entries, settings = engine.namespace(name).entries, engine.namespace(name).settings
            assert settings.quota_entries is not None
            assert entries <= max(20, settings.quota_entries)

    async def change(name: str) -> None:
        for _ in range(12):
            limit = rng.randrange(1, 21)
            view, _ = await engine.set_namespace(
                name, NamespaceSettings(quota_entries=limit, quota_mode=rng.choice(list(QuotaMode)))
            )
            assert view.entries <= limit
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)

    await asyncio.gather(*(write(name) for name in names), *(change(name) for name in names))
    check_accounts(engine)
    for name in names:
        quota = engine.namespace(name).settings.quota_entries
        assert quota is not None
        assert engine.namespace(name).entries <= quota
    assert engine.counters.evictions["evicted"] == 0
    assert await peek(engine, b"key", namespace="neighbour") == b"stays"


# -- wipes -----------------------------------------------------------------------------------------------------------


async def test_d2_a_wipe_takes_all_and_the_name_can_be_used_at_once(rig: Rig) -> None:
    engine = rig.engine
    for number in range(300):
        await put(engine, b"key %d" % number, b"old")
    await put(engine, b"key 1", b"neighbour", namespace="m")
    view = await engine.wipe_namespace("n")
    assert view.entries == 300
    with pytest.raises(NamespaceNotFound):
        engine.namespace("n")
    assert await peek(engine, b"key 1") is None
    check_accounts(engine)
    assert engine.status().capacity.slots.live == 1
    await put(engine, b"key 1", b"new")
    assert engine.namespace("n").entries == 1
    await until(lambda: not engine._index.namespaces.dying)
    assert await peek(engine, b"key 1") == b"new"
    assert await peek(engine, b"key 2") is None
    assert await peek(engine, b"key 1", namespace="m") == b"neighbour"
    assert engine.counters.evictions["wiped"] == 300
    check_accounts(engine)
    await rig.reopen()
    assert await peek(rig.engine, b"key 1") == b"new"
    assert await peek(rig.engine, b"key 2") is None


async def test_d2_a_wipe_cut_in_the_middle_is_finished_by_the_next_start(rig: Rig) -> None:
    """Crash walk: the record is durable, some rows are freed, the name is used again, the process dies."""
    engine = rig.engine
    for number in range(300):
        await put(engine, b"key %d" % number, b"old")
    await engine.checkpoint()
    await engine.wipe_namespace("n")
    await put(engine, b"key 7", b"new")
    assert engine._index.namespaces.dying, "rows are left"
    for checkpoint in (False, True, False):
        await rig.crash()
        engine = rig.engine
        assert not engine.status().partial_recovery
        assert await peek(engine, b"key 7") == b"new"
        assert await peek(engine, b"key 8") is None
        assert engine.status().recovery.recovered_entries == 1
        assert engine.namespace("n").entries == 1
        check_accounts(engine)
        if checkpoint:
            await engine.checkpoint()
    await engine.expire()
    await until(lambda: not engine._index.namespaces.dying)
    await engine.checkpoint()
    await rig.crash()
    assert await peek(rig.engine, b"key 7") == b"new"
    assert rig.engine.status().capacity.slots.live == 1
    check_accounts(rig.engine)


async def test_wiped_rows_go_before_any_others(rig: Rig) -> None:
    """A full device: what was wiped makes room at once, and nobody is evicted."""
    engine = rig.engine
    number = 0
    while engine.status().capacity.free_slabs or engine.status().classes[0].slots.free:
        await put(engine, b"key %d" % number, payload_of(number, 3000), namespace="n" if number % 2 else "m")
        number += 1
    await engine.wipe_namespace("n")
    for fresh in range(100):
        await put(engine, b"fresh %d" % fresh, payload_of(fresh, 3000), namespace="m")
    assert engine.counters.evictions["evicted"] == 0
    check_accounts(engine)


async def test_a_put_under_way_while_its_namespace_is_wiped_is_refused_and_leaves_nothing(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"v")
    session = await engine.begin_put("n", b"slow", 4)
    await session.write(b"slow")
    await engine.wipe_namespace("n")
    with pytest.raises(NamespaceWiped):
        await session.commit()
    session.abort()
    await until(lambda: not engine.status().capacity.slots.in_flight)
    assert await peek(engine, b"slow") is None
    check_accounts(engine)


async def test_a_put_that_begins_while_a_wipe_is_queued_goes_to_the_new_namespace(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"old")
    wiping = asyncio.create_task(engine.wipe_namespace("n"))
    await asyncio.sleep(0)
    result = await put(engine, b"key", b"new", conditions=Conditions(must_be_absent=True))
    await wiping
    assert result.created
    assert await peek(engine, b"key") == b"new"
    await rig.crash()
    assert await peek(rig.engine, b"key") == b"new"


async def test_d3_a_wipe_that_the_journal_cannot_take_has_not_happened(rig: Rig) -> None:
    engine = rig.engine
    await put(engine, b"key", b"v")
    rig.device.faults.append(Fault(OpKind.WRITE, errno.EIO))
    with pytest.raises(JournalUnavailable):
        await engine.wipe_namespace("n")
    rig.device.faults.clear()
    await asyncio.wait_for(_until_available(rig), 10)
    assert await peek(engine, b"key") == b"v"
    await put(engine, b"key", b"w")
    assert await peek(engine, b"key") == b"w"
    check_accounts(engine)
