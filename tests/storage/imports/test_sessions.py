"""Import sessions: bounded, ended when nobody uses them, never a trace of them (L1, D2)."""

from __future__ import annotations

from unittest import mock

import pytest

from storage.engine import Engine
from storage.errors import JournalUnavailable, ParameterInvalid, PartsInvalid
from storage.imports.errors import ImportBusy, ImportNotFound, ImportRefused, ImportTooLarge
from storage.imports.session import ImportState
from tests.storage.imports.training import SCHEMA, at_rest, give
from tests.support.engines import Rig, check_accounts, put, until


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
    with mock.patch("storage.imports.upload.IMPORT_KEYS_MAX", 10), pytest.raises(ImportTooLarge):
        await give(engine, views[0].import_id, "w", range(11))
    with mock.patch("storage.imports.upload.IMPORT_KEY_BYTES_MAX", 10), pytest.raises(ImportTooLarge):
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
