"""Differences are told exactly, every byte is supplied or declared (B1, B2)."""

from __future__ import annotations

import pytest

from storage.engine import Engine
from storage.errors import PartsInvalid, ValueTooLarge
from storage.imports.errors import ImportRefused
from storage.imports.session import ImportPolicy
from storage.namespace_settings import NamespaceSettings
from storage.schema import PartSpec
from tests.storage.imports.training import NESTED, SPECS, at_rest, content, default, give, imported, put_one, row
from tests.support.engines import Rig, check_accounts


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


async def test_l1_a_default_larger_than_any_record_is_never_made(engine: Engine) -> None:
    huge = PartSpec("m", "uint8", (1 << 20, 1 << 20), 0)
    await engine.set_namespace("n", NamespaceSettings(parts=(SPECS[0], huge), schema_version=2))
    view = await engine.begin_import("n", ttl_seconds=60)
    await give(engine, view.import_id, "w", range(2))
    with pytest.raises(ValueTooLarge):
        await engine.commit_import(view.import_id, ImportPolicy.DEFAULT)
    await engine.abort_import(view.import_id)
