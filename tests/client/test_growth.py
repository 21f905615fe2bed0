"""Buckets are split while others write; a split that nobody finished is finished by whoever comes by."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from rawblockd_client import Client, Problem
from rawblockd_client.errors import ConnectionFailed
from rawblockd_client.table import Column, EmbeddingTable
from rawblockd_client.table.bucket import SPLITTING
from rawblockd_client.table.changes import halves
from rawblockd_client.table.growth import grow
from rawblockd_client.table.store import BucketStore
from tests.client.test_table import COLUMNS, rows

BUCKET_BYTES = 1024


def test_writers_lose_nothing_while_the_table_grows_under_them(client: Client, namespace: str) -> None:
    """Each writer adds 1 to the rows it shares, by compare-and-swap of its own: no addition is lost."""
    EmbeddingTable(client, namespace, COLUMNS, bucket_bytes=BUCKET_BYTES)
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            table = EmbeddingTable(client, namespace)
            for step in range(5):
                keys = np.arange(150) * 5 + step + number * 1_000_000
                table.update(keys, rows(keys, number), version=step)
                table.admit(np.arange(12) - 100, version=step)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    table = EmbeddingTable(client, namespace)
    for number in range(3):
        keys = np.arange(750) + number * 1_000_000
        found = table.lookup(keys)
        assert found.found.all()
        assert (found.parts["w"] == rows(keys, number)["w"]).all()
        assert (found.parts["step"] == rows(keys, number)["step"]).all()
    assert table.lookup(np.arange(12) - 100).frequency.tolist() == [15] * 12
    report = table.check()
    assert (report.rows, report.lost_buckets) == (2262, 0)
    assert report.buckets > 20


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_split_that_was_left_half_way_is_finished(client: Client, namespace: str, writes: int) -> None:
    """After its first, second and third write; the descriptor has not followed."""
    table = EmbeddingTable(client, namespace, COLUMNS, bucket_bytes=1 << 20)
    keys = np.arange(300)
    table.update(keys, rows(keys))
    access = table._access
    store, descriptor = access.store, access.descriptor
    bucket = store.read(descriptor, [0])[0]
    assert bucket is not None
    (frozen,) = store.write(descriptor, [replace(bucket, state=SPLITTING)])
    assert not isinstance(frozen, Problem)
    half, child = halves(bucket)
    if writes > 1:
        store.write(descriptor, [child])
    if writes > 2:
        store.write(descriptor, [replace(half, etag=frozen.etag)])  # type: ignore[union-attr]
    assert EmbeddingTable(client, namespace).lookup(keys).found.all(), "readers go on meanwhile"
    assert table.check().rows == 300
    assert table.update(keys, rows(keys, 1), version=2).all()
    assert (table.lookup(keys).parts["w"] == rows(keys, 1)["w"]).all()
    split = store.read(descriptor, [0, 1])
    assert [one.depth for one in split.values() if one is not None] == [1, 1]
    grown = grow(store, access.record, access.refresh(), 4)
    assert grown is not None
    assert grown.buckets == 4
    assert (table.lookup(keys).parts["w"] == rows(keys, 1)["w"]).all(), "an old idea of the number finds every row"
    assert table.check().rows == 300


def test_a_write_whose_answer_was_lost_is_counted_once(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket's mark tells a writer that its write took effect: a sighting is not counted twice."""
    table = EmbeddingTable(client, namespace, COLUMNS)
    table.update([1, 2, 3], rows([1, 2, 3]))
    plain = client.mput
    lost = 0

    def mput(*arguments: object, **named: object) -> object:
        nonlocal lost
        results = plain(*arguments, **named)  # type: ignore[arg-type]
        lost += 1
        if lost <= 2:
            raise ConnectionFailed("the answer was lost")
        return results

    monkeypatch.setattr(client, "mput", mput)
    for expected in range(1, 5):
        table.admit([1, 2, 3], version=9)
        assert table.lookup([1, 2, 3]).frequency.tolist() == [expected] * 3
    assert lost == 4


def test_a_large_update_makes_no_bucket_too_large(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come in by as many as the table can take without a bucket outgrowing a record."""
    largest = 0
    plain = BucketStore.write

    def write(self: BucketStore, descriptor: object, buckets: list[object]) -> object:
        nonlocal largest
        largest = max([largest, *(bucket.size_bytes for bucket in buckets)])  # type: ignore[attr-defined]
        return plain(self, descriptor, buckets)  # type: ignore[arg-type]

    monkeypatch.setattr(BucketStore, "write", write)
    table = EmbeddingTable(client, namespace, [Column("w", "float32", (4,), 0.0)], bucket_bytes=4096)
    keys = np.arange(20_000)
    table.update(keys, {"w": rows(keys)["w"]})
    assert (table.lookup(keys).parts["w"] == rows(keys)["w"]).all()
    assert largest < 8 * 4096
