"""What a trainer gives to an import, and what must come of it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from storage.engine import Engine
from storage.errors import EntryNotFound
from storage.format.parts import bounds
from storage.imports.session import ImportPolicy, ImportResult
from storage.namespace_settings import NamespaceSettings
from storage.schema import OnMissing, PartSpec
from tests.support.engines import Rig, get, until

SPECS = (PartSpec("w", "float32", (8,)), PartSpec("m", "float32", (8,), 0.0), PartSpec("v", "float32", (8,), 0.25))
SCHEMA = NamespaceSettings(parts=SPECS, schema_version=1, on_missing=OnMissing.DEFAULT)
NESTED = {"w": range(300), "m": range(310), "v": range(325)}
"""As a torn snapshot has them: each list was saved a little later than the one before."""


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


async def replacement(engine: Engine, keys: range) -> str:
    """An import of a second version of all there is."""
    await imported(engine, dict.fromkeys("wmv", keys), ImportPolicy.REJECT)
    view = await engine.begin_import("n", ttl_seconds=60)
    for part in "wmv":
        await give(engine, view.import_id, part, keys, version=2)
    return view.import_id
