"""Snapshots while others write, and restores: each row of one generation, and the same bytes every time."""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.embedding_rows import COLUMNS, PARTS, Writer, run_writers, strange_rows, whole_rows
from rawblockd_client import Client, ConnectionFailed, Problem
from rawblockd_client.problems import BatchTooLarge
from rawblockd_client.table import (
    Check,
    Column,
    EmbeddingTable,
    ImportRefused,
    NoDefault,
    RowsInvalid,
    SnapshotDamaged,
    TableChanged,
    read_snapshot,
)
from rawblockd_client.table.growth import grow
from rawblockd_client.table.store import BucketStore
from tests.support.daemon_process import DaemonProcess

WRITERS = 3
ROWS_EACH = 6_000
SNAPSHOTS = 3


@pytest.fixture(scope="module")
def other_geometry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A daemon on a small device with larger slots: other slabs and classes."""
    folder = tmp_path_factory.mktemp("other")
    flags = ("--device", str(folder / "device"), "--create", "--size", "96MiB", "--smallest-slot", "16KiB")
    with DaemonProcess(folder / "log", *flags) as daemon:
        daemon.wait_ready()
        with Client(f"http://127.0.0.1:{daemon.port}") as client:
            yield client
        assert daemon.stop() == 0
    (folder / "device").unlink()


def test_b1_every_row_of_a_snapshot_is_of_one_generation(client: Client, namespace: str, tmp_path: Path) -> None:
    """Three writers insert and overwrite without pause, and the table grows, while snapshots are taken."""
    table = EmbeddingTable(client, namespace, COLUMNS, bucket_bytes=16 * 1024)
    shared = np.arange(500, dtype=np.int64) * 31
    writers = [Writer(client, namespace, number, WRITERS, ROWS_EACH, shared, batch=500) for number in range(WRITERS)]
    stop = threading.Event()
    threads = run_writers(writers, stop.is_set)
    counts = []
    try:
        for number in range(SNAPSHOTS):
            least = sum(writer.inserted for writer in writers)
            taken = table.snapshot(tmp_path / f"{number}.npz")
            rows = read_snapshot(tmp_path / f"{number}.npz").rows
            assert {name: len(values) for name, values in rows.parts.items()} == dict.fromkeys(PARTS, rows.keys.size)
            assert strange_rows(rows.keys, rows.version, rows.parts) == 0
            assert (np.diff(rows.keys) > 0).all()
            assert np.isin(rows.keys, shared).sum() <= shared.size
            assert rows.keys.size >= least, "what was written before is in it"
            assert (taken.rows.keys == rows.keys).all()
            counts.append(rows.keys.size)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [writer.error for writer in writers] == [None] * WRITERS
    written = set().union(*(writer.versions for writer in writers))
    assert set(np.unique(table.snapshot(tmp_path / "last.npz").rows.version).tolist()) <= written
    assert counts == sorted(counts)
    assert table.check().lost_buckets == 0


def test_restored_and_saved_again_it_is_the_same_file(
    client: Client, other_geometry: Client, namespace: str, tmp_path: Path
) -> None:
    """Twice, also through another table layout and a device of another geometry; frequencies and candidates too."""
    table = EmbeddingTable(client, namespace, COLUMNS, filter_freq=2)
    keys = np.random.default_rng(1).integers(-(1 << 62), 1 << 62, 5000)
    table.admit(keys, version=1, initial=whole_rows(keys, 1))
    table.admit(keys[:4000], version=2, initial=whole_rows(keys[:4000], 2))
    table.admit(keys[:1000], version=3)
    table.update(keys[:3000], whole_rows(keys[:3000], 4), version=4)
    first = table.snapshot(tmp_path / "first.npz")
    assert (first.rows.keys.size, first.candidates[0].size) == (4000, 1000)
    assert np.unique(first.rows.frequency).tolist() == [2, 3]
    before = (tmp_path / "first.npz").read_bytes()
    for number, (place, bucket_bytes) in enumerate([(client, 32 * 1024), (other_geometry, 4 * 1024)]):
        copy = EmbeddingTable(place, f"{namespace}-{number}", COLUMNS, filter_freq=2, bucket_bytes=bucket_bytes)
        copy.update(keys[:7], whole_rows(keys[:7], 9))
        for again in range(2):
            report = copy.restore(tmp_path / "first.npz")
            assert (report.rows, report.is_torn, report.committed) == (4000, False, True)
            copy.snapshot(tmp_path / f"{number}{again}.npz")
            assert (tmp_path / f"{number}{again}.npz").read_bytes() == before
        found = copy.lookup(keys[:4000])
        assert strange_rows(keys[:4000], found.version, found.parts) == 0
        assert len(list(place.listing(f"{namespace}-{number}"))) == copy.buckets + 1
    assert np.load(tmp_path / "first.npz")["part.w"].shape == (4000, 8)


def test_d2_a_restore_that_fails_leaves_everything_as_it_was(
    client: Client, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS, bucket_bytes=2048)
    keys = np.arange(500)
    table.update(keys, whole_rows(keys, 1), version=1)
    table.snapshot(tmp_path / "one.npz")
    table.update(keys, whole_rows(keys, 2), version=2)
    plain, writes = BucketStore._write_batch, 0

    def fail(self: BucketStore, *arguments: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes == 3:
            raise Problem("full", 507)
        return plain(self, *arguments)

    monkeypatch.setattr("rawblockd_client.table.store.BATCH_BUCKETS", 8)
    monkeypatch.setattr(BucketStore, "_write_batch", fail)
    with pytest.raises(Problem):
        table.restore(tmp_path / "one.npz")
    monkeypatch.setattr(BucketStore, "_write_batch", plain)
    found = table.lookup(keys)
    assert (strange_rows(keys, found.version, found.parts), set(found.version)) == (0, {2})
    assert table.sweep() == 16
    assert table.sweep() == 0
    assert table.restore(tmp_path / "one.npz").committed
    assert set(table.lookup(keys).version) == {1}


def test_of_two_restores_at_once_one_is_refused(
    client: Client, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS)
    table.update([1], whole_rows(np.array([1]), 1), version=1)
    table.snapshot(tmp_path / "one.npz")
    other = EmbeddingTable(client, namespace)
    plain = BucketStore.write
    raced = False

    def race(self: BucketStore, *arguments: Any) -> Any:
        nonlocal raced
        if not raced:
            raced = True
            other.restore(tmp_path / "one.npz")
        return plain(self, *arguments)

    monkeypatch.setattr(BucketStore, "write", race)
    with pytest.raises(TableChanged):
        table.restore(tmp_path / "one.npz")
    assert table.lookup([1]).found.all(), "the table goes on with the rows that are there now"
    assert table.sweep() == 0


def test_a_table_that_grows_while_it_is_restored_is_restored(
    client: Client, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the answer to the exchange of the table's record is lost."""
    table = EmbeddingTable(client, namespace, COLUMNS)
    table.update([1], whole_rows(np.array([1]), 1), version=1)
    table.snapshot(tmp_path / "one.npz")
    table.update([1, 2], whole_rows(np.array([1, 2]), 2), version=2)
    plain_write, plain_put = BucketStore.write, client.put
    grown = lost = False

    def write(self: BucketStore, *arguments: Any) -> Any:
        nonlocal grown
        if not grown:
            grown = True
            access = EmbeddingTable(client, namespace)._access
            assert grow(access.store, access.record, access.descriptor, 5) is not None
        return plain_write(self, *arguments)

    def put(*arguments: Any, **named: Any) -> Any:
        nonlocal lost
        result = plain_put(*arguments, **named)
        if not lost:
            lost = True
            raise ConnectionFailed("the answer was lost")
        return result

    monkeypatch.setattr(BucketStore, "write", write)
    monkeypatch.setattr(client, "put", put)
    assert table.restore(tmp_path / "one.npz").committed
    assert (grown, lost) == (True, True)
    assert table.lookup([1, 2]).version.tolist() == [1, 0]
    assert table.sweep() == 0


@pytest.mark.parametrize("policy", ["reject", "drop", "default"])
def test_a_part_that_the_file_lacks_goes_by_the_policy(
    client: Client, namespace: str, tmp_path: Path, policy: str
) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS[:2])
    keys = np.arange(10)
    rows = {name: values for name, values in whole_rows(keys, 1).items() if name != "v"}
    table.update(keys, rows, version=1)
    table.snapshot(tmp_path / "two.npz")
    wider = EmbeddingTable(client, f"{namespace}-b", COLUMNS)
    if policy == "reject":
        with pytest.raises(ImportRefused) as refused:
            wider.restore(tmp_path / "two.npz", policy)
        assert {(one.part, one.other, one.missing) for one in refused.value.report.differences} == {
            ("w", "v", 10), ("m", "v", 10),
        }  # fmt: skip
        return
    report = wider.restore(tmp_path / "two.npz", policy)
    assert (report.rows, report.dropped, report.filled) == ((0, 10, {}) if policy == "drop" else (10, 0, {"v": 10}))
    if policy == "default":
        found = wider.lookup(keys)
        assert (found.parts["v"] == 0.0).all()
        assert (found.parts["w"] == rows["w"]).all()
    none = EmbeddingTable(client, f"{namespace}-c", [*COLUMNS[:2], Column("v", "float32", (8,))])
    if policy == "default":
        with pytest.raises(NoDefault):
            none.restore(tmp_path / "two.npz", policy)
    with pytest.raises(RowsInvalid):
        EmbeddingTable(client, f"{namespace}-d", COLUMNS[:1]).restore(tmp_path / "two.npz", policy)


def test_a_damaged_file_is_refused(client: Client, namespace: str, tmp_path: Path) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS)
    keys = np.arange(100)
    table.update(keys, whole_rows(keys, 1), version=1)
    table.snapshot(tmp_path / "good.npz")
    good = (tmp_path / "good.npz").read_bytes()
    for odd in (good[:-100], b"", b"text", good[:3000] + bytes([good[3000] ^ 1]) + good[3001:]):
        (tmp_path / "odd.npz").write_bytes(odd)
        with pytest.raises(SnapshotDamaged):
            table.restore(tmp_path / "odd.npz")
    np.savez(tmp_path / "odd.npz", keys=keys)
    with pytest.raises(SnapshotDamaged):
        table.restore(tmp_path / "odd.npz")
    for name in ("keys.npy", "part.w.npy"):
        _exchange(tmp_path / "good.npz", tmp_path / "odd.npz", name)
        with pytest.raises(SnapshotDamaged):
            table.restore(tmp_path / "odd.npz")
    assert (table.check().rows, table.check().versions) == (100, (1, 1))


def _exchange(source: Path, target: Path, name: str) -> None:
    """The same archive, valid as such, with one member's last byte changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info.filename, data[:-1] + bytes([data[-1] ^ 1]) if info.filename == name else data)


def test_a_manifest_says_what_is_in_the_file(client: Client, namespace: str, tmp_path: Path) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS)
    table.update(np.arange(10), whole_rows(np.arange(10), 3), version=3)
    table.snapshot(tmp_path / "one.npz")
    with zipfile.ZipFile(tmp_path / "one.npz") as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert (manifest["rows"], manifest["candidates"], manifest["versions"]) == (10, 0, [3, 3])
    assert [part["name"] for part in manifest["parts"]] == list(PARTS)


def test_odd_values_are_reported_and_stay_what_they_are(client: Client, namespace: str, tmp_path: Path) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS)
    keys = np.arange(20)
    rows = {name: np.ones((20, 8), dtype=np.float32) for name in PARTS}
    rows["w"][3, 1], rows["w"][4, 2:4], rows["m"][5, 0], rows["v"][6] = np.nan, np.inf, -1.7e38, 5.0
    table.update(keys, rows, version=1)
    checks = {"w": Check(), "m": Check(limit=1e6), "v": Check(limit=5.0)}
    found = {one.part: one for one in table.check(checks).findings}
    assert set(found) == {"w", "m"}
    assert (found["w"].non_finite, found["w"].above_limit, found["w"].examples) == (3, 0, (3, 4))
    assert (found["m"].non_finite, found["m"].above_limit, found["m"].examples) == (0, 1, (5,))
    table.snapshot(tmp_path / "one.npz")
    assert {one.part for one in table.restore(tmp_path / "one.npz", checks=checks).findings} == {"w", "m"}
    after = table.lookup(keys)
    assert all(after.parts[name].tobytes() == rows[name].tobytes() for name in PARTS)
    with pytest.raises(RowsInvalid):
        table.check({"none": Check()})


def test_a_batch_that_is_too_large_for_the_device_is_made_smaller(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sizes = client.mput, []

    def mput(namespace: str, items: Any, **named: Any) -> Any:
        sizes.append(len(items))
        if len(items) > 5:
            raise BatchTooLarge("batch_too_large", 413)
        return plain(namespace, items, **named)

    monkeypatch.setattr(client, "mput", mput)
    table = EmbeddingTable(client, namespace, COLUMNS, expected_rows=2000, bucket_bytes=4096)
    keys = np.arange(2000)
    assert table.update(keys, whole_rows(keys, 1)).all()
    assert max(sizes) > 5
    assert table.lookup(keys).found.all()
