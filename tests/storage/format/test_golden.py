"""Golden images: devices that were written once, which today's code must read to the last entry (D2, R9)."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from storage.device.opening import open_device
from storage.engine import Engine
from storage.offline import check, copies, dump
from storage.options import EngineOptions
from storage.status import EngineState

GOLDEN = Path(__file__).parents[2] / "golden"
NAMES = ["v1-fresh", "v1-mixed", "v1-partial"]
VERDICTS = {"v1-fresh": "clean", "v1-mixed": "clean", "v1-partial": "damaged"}
NOW = 1_750_002_000.0
"""Between the puts and the first expiry."""
OPTIONS = EngineOptions(background=False, buffer_bytes=8 << 20)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def image(name: str, tmp_path: Path) -> Path:
    path = tmp_path / "device"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.xz").read_bytes()))
    return path


@pytest.fixture
def listing(name: str) -> dict[str, Any]:
    listed: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return listed


async def read_entry(engine: Engine, namespace: str, key: bytes) -> dict[str, Any]:
    """An entry as the list has it."""
    reader = await engine.open_read(namespace, key)
    try:
        payload = b"".join([bytes(piece) async for piece in reader.pieces()])
        info = reader.info
    finally:
        reader.close()
    return {
        "namespace": info.namespace,
        "key": info.key.hex(),
        "write_id": info.write_id,
        "payload_bytes": info.payload_bytes,
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
        "content_type": info.content_type,
        "metadata": dict(info.metadata),
        "stored_at": info.stored_at,
        "expires_at": info.expires_at,
    }


async def test_the_daemon_serves_every_entry(name: str, image: Path, listing: dict[str, Any]) -> None:
    device = open_device(image, write=True, io_engine="threads")
    engine = Engine(device, OPTIONS, clock=lambda: NOW)
    await engine.start()
    for entry in listing["entries"]:
        assert await read_entry(engine, entry["namespace"], bytes.fromhex(entry["key"])) == entry
    status = engine.status()
    assert sum(namespace.entries for namespace in status.namespaces.values()) == len(listing["entries"])
    assert status.partial_recovery is (name == "v1-partial")
    assert status.skipped_entries == len(listing["skipped"])
    assert (engine.state is EngineState.READY) is (name != "v1-partial")
    skipped = [{"reason": v.reason, "slab": v.slab, "slot": v.slot} for v in engine.skipped(0, 100)]
    assert skipped == listing["skipped"]
    await engine.stop()
    device.close()


def test_the_dump_has_every_entry_and_no_other(image: Path, listing: dict[str, Any]) -> None:
    found = {}
    for entry in dump(str(image), clock=lambda: NOW):
        if entry["entry"] == "live":
            found[entry["namespace"], entry["key_hex"]] = entry
    assert set(found) == {(entry["namespace"], entry["key"]) for entry in listing["entries"]}
    for entry in listing["entries"]:
        dumped = found[entry["namespace"], entry["key"]]
        assert int(dumped["write_id"], 16) == entry["write_id"]
        for field in ("payload_bytes", "content_type", "metadata", "stored_at", "expires_at"):
            assert dumped[field] == entry[field]


def test_the_check_has_its_verdict(name: str, image: Path, listing: dict[str, Any]) -> None:
    report = check(str(image), payloads=True, clock=lambda: NOW)
    assert report.verdict == VERDICTS[name]
    damage = {kind: count for kind, count in report.damage.items() if count}
    assert damage == ({"page": 3, "skipped_entry": 1} if name == "v1-partial" else {})
    assert report.entries == len(listing["entries"])


def test_the_copies_are_those_that_were_written(name: str, image: Path) -> None:
    numbers = [copy.get("number") for copy in copies(str(image))["copies"]]
    assert numbers == {"v1-fresh": [1, None, None], "v1-mixed": [1, 2, 3], "v1-partial": [4, 2, 3]}[name]


def test_images_are_small() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.xz")) == NAMES
    assert all(path.stat().st_size < 200 << 10 for path in GOLDEN.glob("*.xz"))
