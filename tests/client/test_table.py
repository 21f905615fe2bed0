"""A table does what a dict of rows would do, and refuses what isn't exactly a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rawblockd_client import Client, PutItem
from rawblockd_client.table import (
    BucketInvalid,
    Column,
    DuplicateKeys,
    EmbeddingTable,
    NoDefault,
    RowsInvalid,
    TableMismatch,
    TableMissing,
)
from rawblockd_client.table.bucket import depth_of, hash_keys, indexes_of

COLUMNS = [Column("w", "float32", (4,), 0.25), Column("step", "int64", (), 7)]


def rows(keys: Any, salt: int = 0) -> dict[str, Any]:
    whole = np.asarray(keys, dtype=np.int64)
    w = (whole[:, None] % 1000 + np.arange(4)[None, :] + salt).astype(np.float32)
    return {"w": w, "step": whole * 3 + salt}


@pytest.fixture
def table(client: Client, namespace: str) -> EmbeddingTable:
    return EmbeddingTable(client, namespace, COLUMNS, bucket_bytes=4096)


@pytest.mark.parametrize("filter_freq", [0, 3])
def test_a_table_is_a_dict_of_rows(client: Client, namespace: str, filter_freq: int) -> None:
    """Steps of all kinds at random, over a table that grows on the way; the rows asked for are the model's."""
    table = EmbeddingTable(client, namespace, COLUMNS, bucket_bytes=1024, filter_freq=filter_freq)
    other = EmbeddingTable(client, namespace)
    random = np.random.default_rng(filter_freq)
    model: dict[int, tuple[int, int, int]] = {}
    sighted: dict[int, int] = {}
    for step in range(1, 45):
        keys = random.choice(1000, 120) - 500
        unique = np.unique(keys)
        action = random.integers(4)
        if action == 0:
            written = table.update(unique, rows(unique, step), version=step)
            for key, there in zip(unique.tolist(), written.tolist(), strict=True):
                assert there == (filter_freq <= 1 or key in model)
                if there:
                    model[key] = (step, step, model.get(key, (0, 0, 0))[2])
        elif action == 1:
            admitted = table.admit(keys, version=step, initial=rows(keys, 1000))
            for key in keys.tolist():
                if key in model:
                    model[key] = (*model[key][:2], model[key][2] + 1)
                else:
                    sighted[key] = sighted.get(key, 0) + 1
            for key in unique.tolist():
                if key not in model and sighted[key] >= filter_freq:
                    model[key] = (1000, step, sighted.pop(key))
            assert admitted.tolist() == [key in model for key in keys.tolist()]
        elif action == 2:
            gone = table.remove(keys[:10])
            assert gone.tolist() == [key in model for key in keys[:10].tolist()]
            for key in keys[:10].tolist():
                model.pop(key, None)
                sighted.pop(key, None)
        found = other.lookup(keys)
        assert found.found.tolist() == [key in model for key in keys.tolist()]
        for at, key in enumerate(keys.tolist()):
            salt, version, frequency = model.get(key, (0, 0, 0))
            expected = rows([key], salt) if key in model else {"w": np.full((1, 4), 0.25), "step": np.array([7])}
            assert (found.parts["w"][at] == expected["w"][0]).all()
            assert found.parts["step"][at] == expected["step"][0]
            assert (found.version[at], found.frequency[at]) == (version, frequency)
    report = table.check()
    assert (report.rows, report.candidates, report.lost_buckets) == (len(model), len(sighted), 0)
    assert report.buckets > 8, "the table has grown"


def test_below_the_filter_a_key_has_frequency_and_version_and_no_row(client: Client, namespace: str) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS, filter_freq=3)
    assert table.admit([5, 5, 6], version=1).tolist() == [False, False, False]
    assert not table.lookup([5]).found.any()
    assert (table.check().rows, table.check().candidates) == (0, 2)
    assert table.admit([5, 6], version=2, initial=rows([5, 6])).tolist() == [True, False]
    found = table.lookup([5, 6])
    assert (found.found.tolist(), found.frequency.tolist(), found.version.tolist()) == ([True, False], [3, 0], [2, 0])
    assert table.update([5, 6], rows([5, 6]), version=3).tolist() == [True, False]
    assert (table.check().rows, table.check().candidates) == (1, 1)


def test_only_the_parts_asked_for_are_read(table: EmbeddingTable) -> None:
    table.update([1, 2], rows([1, 2]))
    found = table.lookup([2, 9, 1], parts=["step"])
    assert list(found.parts) == ["step"]
    assert found.parts["step"].tolist() == [6, 7, 3]
    assert table.lookup([], parts=[]).found.size == 0
    with pytest.raises(RowsInvalid):
        table.lookup([1], parts=["none"])


@pytest.mark.parametrize(
    "change",
    [
        {"w": np.zeros((2, 4), dtype=np.float64)},
        {"w": np.zeros((2, 5), dtype=np.float32)},
        {"w": np.zeros((3, 4), dtype=np.float32)},
        {"step": np.zeros(2, dtype=np.int32)},
        {"none": np.zeros(2)},
        {"w": None},
    ],
)
def test_b4_rows_that_are_not_exactly_rows_are_refused(table: EmbeddingTable, change: dict[str, Any]) -> None:
    given = {**rows([1, 2]), **change}
    with pytest.raises(RowsInvalid):
        table.update([1, 2], {name: values for name, values in given.items() if values is not None})
    assert table.check().rows == 0


@pytest.mark.parametrize("keys", [[1.5, 2.0], [[1], [2]], ["1", "2"], np.array([1 << 63, 1], dtype=np.uint64)])
def test_b4_keys_that_are_no_whole_numbers_are_refused(table: EmbeddingTable, keys: Any) -> None:
    with pytest.raises(RowsInvalid):
        table.update(keys, rows([1, 2]))


def test_a_key_that_stands_twice_has_no_one_row(table: EmbeddingTable) -> None:
    with pytest.raises(DuplicateKeys) as twice:
        table.update([1, 2, 1, 1], rows([1, 2, 1, 1]))
    assert twice.value.counts == {"keys": 2}


def test_b2_nothing_stands_in_for_a_part_without_default(client: Client, namespace: str) -> None:
    table = EmbeddingTable(client, namespace, [Column("w", "float32", (2,)), Column("m", "float32", (2,), 0.0)])
    table.update([1], {"w": np.ones((1, 2), np.float32), "m": np.ones((1, 2), np.float32)})
    assert table.lookup([1]).found.all()
    with pytest.raises(NoDefault) as missing:
        table.lookup([1, 2, 3])
    assert (missing.value.part, missing.value.missing) == ("w", 2)
    assert table.lookup([1, 2], parts=["m"]).parts["m"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    with pytest.raises(NoDefault):
        table.admit([4])


@pytest.mark.parametrize(
    "column",
    [
        ("", "float32", (1,)),
        ("row.key", "float32", (1,)),
        ("w", "float31", (1,)),
        ("w", "bfloat16", (1,)),
        ("w", "float32", (-1,)),
        ("w", "float32", (0,)),
        ("w", "float32", (True,)),
        ("w", "int8", (1,), 0.5),
        ("w", "int8", (1,), 200),
        ("w", "float32", (1,), float("nan")),
    ],
)
def test_b4_odd_columns_are_refused(column: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="part"):
        Column(*column)


def test_a_table_is_opened_as_what_it_is(client: Client, namespace: str, table: EmbeddingTable) -> None:
    assert list(EmbeddingTable(client, namespace).columns) == COLUMNS
    with pytest.raises(TableMismatch):
        EmbeddingTable(client, namespace, COLUMNS[:1])
    with pytest.raises(TableMismatch):
        EmbeddingTable(client, namespace, COLUMNS, filter_freq=2)
    with pytest.raises(TableMissing):
        EmbeddingTable(client, namespace, name="none")
    two = EmbeddingTable(client, namespace, COLUMNS[:1], name="two", expected_rows=50_000)
    assert two.buckets > 50
    two.update([1], {"w": np.ones((1, 4), np.float32)})
    assert not table.lookup([1]).found.any()
    client.wipe_namespace(namespace)
    with pytest.raises(TableMissing):
        table.update([1], rows([1]))


def test_b3_a_record_that_is_no_bucket_of_the_table_is_refused(
    client: Client, namespace: str, table: EmbeddingTable
) -> None:
    key = next(entry.key for entry in client.listing(namespace) if entry.key.endswith(b"00000000"))
    client.put(namespace, key, b"something else")
    with pytest.raises(BucketInvalid):
        table.lookup([1])
    twin = EmbeddingTable(client, f"{namespace}-b", COLUMNS, bucket_bytes=4096)
    twin_key = next(entry.key for entry in client.listing(f"{namespace}-b") if entry.key.endswith(b"00000000"))
    entry = client.get_entry(f"{namespace}-b", twin_key)
    assert entry is not None
    client.mput(namespace, [PutItem(key, entry.value, parts=entry.info.parts)])
    with pytest.raises(BucketInvalid, match="place"):
        table.lookup([1])
    assert twin.lookup([1]).found.tolist() == [False]


def test_a_lost_bucket_is_counted_and_costs_its_rows_alone(client: Client, namespace: str) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS, bucket_bytes=1024, expected_rows=1000)
    keys = np.arange(1000)
    table.update(keys, rows(keys))
    key = next(entry.key for entry in client.listing(namespace) if entry.key.endswith(b"/00000003"))
    client.delete(namespace, key)
    found = table.lookup(keys).found
    assert (table.lost_buckets, table.check().lost_buckets) == (1, 1)
    lost = indexes_of(hash_keys(keys), table.buckets) == 3
    assert (found == ~lost).all()
    table.update(keys, rows(keys, 1), version=2)
    assert table.check().lost_buckets == 0
    assert (table.lookup(keys).parts["w"] == rows(keys, 1)["w"]).all()


def test_space_is_less_than_twice_the_rows_and_ten_thousand_are_few_records(client: Client, namespace: str) -> None:
    columns = [Column(name, "float32", (8,), 0.0) for name in "wmv"]
    table = EmbeddingTable(client, namespace, columns)
    keys = np.arange(10_000) * 7919
    table.update(keys, {name: np.ones((10_000, 8), np.float32) for name in "wmv"})
    usage = client.namespace(namespace)
    assert usage is not None
    assert usage["used_bytes"] < 2 * 10_000 * 3 * 32
    assert usage["entries"] < 100


@pytest.mark.parametrize("buckets", [1, 2, 3, 5, 8, 100, 1025])
def test_every_hash_has_one_bucket_and_depths_say_which(buckets: int) -> None:
    hashes = hash_keys(np.arange(20_000, dtype=np.int64))
    found = indexes_of(hashes, buckets)
    assert set(found.tolist()) == set(range(buckets))
    for index in range(buckets):
        depth = depth_of(index, buckets)
        assert (found == index).tolist() == ((hashes & np.uint64((1 << depth) - 1)) == np.uint64(index)).tolist()
