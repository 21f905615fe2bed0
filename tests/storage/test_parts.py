"""Parts and schemas: one record, one write id; nothing coerced, nothing guessed (B1, B2, B4)."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.engine import Engine
from storage.errors import NamespacesFull, ParameterInvalid, PartsInvalid, SchemaConflict
from storage.format.catalogue import NamespaceRecord, NamespaceWipedRecord, encode_record
from storage.format.journal_block import JOURNAL
from storage.format.layout import Undecodable
from storage.format.parts import DTYPES, PARTS_MAX, Part, bounds, decode_parts, encode_parts, total_bytes
from storage.format.record import RecordMap, decode_map
from storage.limits import SCHEMAS_MAX_BYTES
from storage.namespace_settings import DEFAULT_SETTINGS, NamespaceSettings, decode_settings, encode_settings
from storage.put_session import PutSession
from storage.schema import OnMissing, PartSpec, decode_specs, element_bytes, encode_specs
from tests.support.engines import Rig, check_accounts, get, payload_of, put, until
from tests.support.records import encode_map

W, M, V = (Part(name, "float32", (8,)) for name in "wmv")
SPECS = (PartSpec("w", "float32", (8,)), PartSpec("m", "float32", (8,), 0.0), PartSpec("v", "float32", (8,), 0.5))
SCHEMA = NamespaceSettings(parts=SPECS, schema_version=1)
FILLING = replace(SCHEMA, on_missing=OnMissing.DEFAULT)

names = st.text("abcXYZ019._-", min_size=1, max_size=64)
parts_lists = st.lists(
    st.builds(
        Part,
        name=names,
        dtype=st.sampled_from(sorted(DTYPES)),
        shape=st.lists(st.integers(0, 100), max_size=8).map(tuple),
    ),
    min_size=1,
    max_size=PARTS_MAX,
    unique_by=lambda part: part.name,
)


async def put_parts(engine: Engine, key: bytes, payload: bytes, parts: tuple[Part, ...]) -> PutSession:
    session = await engine.begin_put("n", key, len(payload), parts=parts)
    try:
        if payload:
            await session.write(payload)
        await session.commit()
    finally:
        session.abort()
    return session


@given(parts_lists)
def test_b4_parts_round_trip_in_the_record_map(parts: list[Part]) -> None:
    record_map = RecordMap(b"k", "n", 1, parts=tuple(parts))
    assert decode_map(encode_map(record_map)) == record_map
    where = bounds(parts)
    assert [where[part.name][1] - where[part.name][0] for part in parts] == [part.size_bytes for part in parts]
    assert max((stop for _, stop in where.values()), default=0) == total_bytes(parts)


@pytest.mark.parametrize(
    "packed",
    [
        (),
        ((),),
        (("w", "float32"),),
        (("w", "float32", 8),),
        (("w", "float31", (8,)),),
        (("w", "float32", (8.0,)),),
        (("w", "float32", (True,)),),
        (("w", "float32", (-1,)),),
        (("w", "float32", (1 << 31,)),),
        (("w", "float32", (1,) * 9),),
        (("", "float32", (8,)),),
        (("a b", "float32", (8,)),),
        ((b"w", "float32", (8,)),),
        (("w", "float32", (8,)), ("w", "float32", (8,))),
        tuple((f"p{n}", "int8", (1,)) for n in range(17)),
        [("w", "float32", (8,))],
    ],
)
def test_b4_odd_parts_are_damage(packed: object) -> None:
    with pytest.raises(Undecodable):
        decode_parts(packed)


async def test_b1_a_part_is_read_by_itself_and_only_its_blocks(rig: Rig) -> None:
    engine = rig.engine
    parts = tuple(Part(name, "uint8", (100_000,)) for name in "abc")
    payload = payload_of(7, 300_000)
    await put_parts(engine, b"key", payload, parts)
    engine = await rig.reopen()
    info = await engine.head("n", b"key")
    assert info.parts == parts
    start, stop = bounds(info.parts)["b"]
    before = engine._device.counters.read.bytes
    reader = await engine.open_read("n", b"key", sparse=True)
    found = b"".join([bytes(piece) async for piece in reader.pieces(start, stop)])
    reader.close()
    assert found == payload[start:stop]
    assert engine._device.counters.read.bytes - before <= 4096 + 3 * 65536 + 8192
    assert await get(engine, b"key") == payload
    await until(lambda: not engine._arena.used_bytes)


@pytest.mark.parametrize(
    ("parts", "payload", "named"),
    [
        ((W, M), bytes(32), None),
        ((W, Part("w", "int8", (0,))), bytes(32), "w"),
        ((Part("a b", "int8", (1,)),), bytes(1), "a b"),
        ((Part("a", "int9", (1,)),), bytes(1), "a"),
        ((Part("a", "int8", (-1,)),), bytes(1), "a"),
        (tuple(Part(f"p{n}", "int8", (1,)) for n in range(17)), bytes(17), None),
    ],
)
async def test_b4_parts_that_are_not_the_payload_are_refused(
    rig: Rig, parts: tuple[Part, ...], payload: bytes, named: str | None
) -> None:
    with pytest.raises(PartsInvalid) as caught:
        await rig.engine.begin_put("n", b"key", len(payload), parts=parts)
    assert caught.value.fields.get("part") == named
    assert rig.engine.status().capacity.slots.in_flight == 0


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ((W, M), "v"),
        ((W, M, V, Part("x", "float32", (8,))), "x"),
        ((W, M, Part("v", "float64", (8,))), "v"),
        ((W, M, Part("v", "int32", (8,))), "v"),
        ((W, M, Part("v", "float32", (9,))), "v"),
        ((W, M, Part("v", "float32", (2, 4))), "v"),
        ((), None),
    ],
)
async def test_b4_a_schema_is_strict(rig: Rig, parts: tuple[Part, ...], named: str | None) -> None:
    await rig.engine.set_namespace("n", SCHEMA)
    with pytest.raises(PartsInvalid) as caught:
        await rig.engine.begin_put("n", b"key", total_bytes(parts) or 1, parts=parts)
    assert caught.value.fields.get("part") == named


async def test_b2_what_is_missing_is_the_declared_number(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", FILLING)
    w = np.arange(8, dtype="<f4").tobytes()
    await put_parts(engine, b"key", w, (W,))
    info = await engine.head("n", b"key")
    assert {part.name for part in info.parts} == {"w", "m", "v"}
    payload, where = await get(engine, b"key"), bounds(info.parts)
    assert payload[slice(*where["w"])] == w
    assert np.frombuffer(payload[slice(*where["m"])], "<f4").tolist() == [0.0] * 8
    assert np.frombuffer(payload[slice(*where["v"])], "<f4").tolist() == [0.5] * 8
    with pytest.raises(PartsInvalid, match="no default"):
        await engine.begin_put("n", b"key", 32, parts=(M,))
    await engine.set_namespace(
        "n", replace(FILLING, parts=(replace(SPECS[0], default=1.0), *SPECS[1:]), schema_version=2)
    )
    await put_parts(engine, b"all defaults", b"", ())
    assert len(await get(engine, b"all defaults")) == 96
    check_accounts(engine)


async def test_schemas_are_versioned_and_old_records_stay_readable(rig: Rig) -> None:
    engine = rig.engine
    await engine.set_namespace("n", SCHEMA)
    await put_parts(engine, b"old", bytes(96), (W, M, V))
    other = replace(SCHEMA, parts=SPECS[:2], schema_version=1)
    with pytest.raises(SchemaConflict):
        await engine.set_namespace("n", other)
    with pytest.raises(SchemaConflict):
        await engine.set_namespace("n", replace(SCHEMA, schema_version=2))
    with pytest.raises(SchemaConflict):
        await engine.set_namespace("n", DEFAULT_SETTINGS)
    await engine.set_namespace("n", replace(other, schema_version=2))
    await put_parts(engine, b"new", bytes(64), (W, M))
    engine = await rig.crash()
    assert engine.namespace("n").settings.parts == SPECS[:2]
    assert (await engine.head("n", b"old")).parts == (W, M, V)
    assert await get(engine, b"old") == bytes(96)
    await engine.set_namespace("n", NamespaceSettings(schema_version=3))
    await put(engine, b"plain", b"a value of no parts")


async def test_l1_schemas_are_bounded(rig: Rig) -> None:
    specs = tuple(PartSpec(f"{n:02d}" * 32, "float32", (1 << 30,) * 8) for n in range(16))
    settings = NamespaceSettings(parts=specs, schema_version=1)
    most = SCHEMAS_MAX_BYTES // len(encode_specs(specs))
    for number in range(most - 1):
        await rig.engine.set_namespace(f"n{number}", settings)
    with pytest.raises(NamespacesFull):
        await rig.engine.set_namespace("one", settings)
    await rig.engine.checkpoint()


@pytest.mark.parametrize(
    "specs",
    [
        (PartSpec("w", "float32", (8,)), PartSpec("w", "float32", (8,))),
        (PartSpec("w", "int32", (8,), 0.5),),
        (PartSpec("w", "int32", (8,), 0.0),),
        (PartSpec("w", "int8", (8,), 128),),
        (PartSpec("w", "uint8", (8,), -1),),
        (PartSpec("w", "float16", (8,), 1e6),),
        (PartSpec("w", "float32", (8,), 1e300),),
        (PartSpec("w", "bfloat16", (8,), 1e300),),
        (PartSpec("w", "float32", (8,), float("nan")),),
        (PartSpec("w", "float64", (8,), float("inf")),),
        (PartSpec("w", "float8_e5m2", (8,), 1.0),),
        (PartSpec("w", "bool", (8,), 2),),
        (PartSpec("w", "bool", (8,), True),),
        (PartSpec("w", "float32", (8,), False),),
        (PartSpec("w", "float64", (8,), 1 << 64),),
        (PartSpec("w", "float64", (8,), 10**400),),
        (PartSpec("w;", "bool", (8,)),),
        (PartSpec("w", "decimal", (8,)),),
    ],
)
async def test_b4_odd_schemas_are_refused(rig: Rig, specs: tuple[PartSpec, ...]) -> None:
    with pytest.raises(ParameterInvalid, match="part"):
        await rig.engine.set_namespace("n", NamespaceSettings(parts=specs, schema_version=1))


@given(
    st.lists(
        st.builds(
            PartSpec,
            name=names,
            dtype=st.sampled_from(["float64"]),
            shape=st.lists(st.integers(0, 100), max_size=8).map(tuple),
            default=st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9),
        ),
        min_size=1,
        max_size=PARTS_MAX,
        unique_by=lambda spec: spec.name,
    )
)
def test_b4_schemas_round_trip(specs: list[PartSpec]) -> None:
    decoded = decode_specs(encode_specs(specs))
    assert decoded == tuple(specs)
    assert [type(spec.default) for spec in decoded] == [type(spec.default) for spec in specs]
    settings = NamespaceSettings(parts=tuple(specs), schema_version=3, on_missing=OnMissing.DEFAULT)
    assert decode_settings(encode_settings(settings)) == settings


@given(st.floats(-1e38, 1e38))
def test_a_bfloat16_is_the_nearest_one(number: float) -> None:
    (bits,) = struct.unpack("<H", element_bytes("bfloat16", number))
    (found,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    for other in (bits - 1, bits + 1):
        (neighbour,) = struct.unpack("<f", struct.pack("<I", (other & 0xFFFF) << 16))
        assert not abs(np.float32(number) - np.float32(neighbour)) < abs(np.float32(number) - np.float32(found))


def test_parts_have_the_sizes_of_their_types() -> None:
    for dtype, size in DTYPES.items():
        assert Part("w", dtype, (3, 5)).size_bytes == 15 * size
        assert len(element_bytes(dtype, 0)) == size
    assert encode_parts((W,)) == [("w", "float32", (8,))]


def test_l1_the_longest_schema_fits_a_block_of_the_journal() -> None:
    specs = tuple(PartSpec(f"{n:02}" + "x" * 62, "float64", (2**31 - 1,) * 8, -sys.float_info.max) for n in range(16))
    settings = NamespaceSettings(parts=specs, schema_version=1 << 31)
    record = NamespaceRecord((1 << 63) - 1, 0xFFFFFFFF, "n" * 128, encode_settings(settings))
    assert decode_settings(record.settings) == settings
    assert len(encode_record(record)) <= 4096 - JOURNAL.size_bytes - len(
        encode_record(NamespaceWipedRecord((1 << 63) - 1, 1))
    )
