"""A snapshot that was torn elsewhere: measured, then refused, reduced or filled; never a byte that nobody gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.embedding_rows import COLUMNS, DEFAULTS, KEY_COUNTS, PARTS, POISON, rows_of, torn_parts
from rawblockd_client import Client
from rawblockd_client.table import (
    Column,
    DuplicateKeys,
    EmbeddingTable,
    ImportRefused,
    NoDefault,
    PartRows,
    RowsInvalid,
)

SCALE = 100
COUNTS = {part: count // SCALE for part, count in zip(PARTS, KEY_COUNTS, strict=True)}
W, M, V = COUNTS["w"], COUNTS["m"], COUNTS["v"]


@pytest.fixture(scope="module")
def torn() -> dict[str, PartRows]:
    return torn_parts(SCALE)


def versions_of(torn: dict[str, PartRows]) -> dict[int, int]:
    versions = torn["v"].versions
    assert versions is not None
    return dict(zip(torn["v"].keys.tolist(), versions.tolist(), strict=True))


def test_the_tear_is_as_wide_as_it_was(torn: dict[str, PartRows]) -> None:
    assert {part: rows.keys.size for part, rows in torn.items()} == COUNTS
    assert (M - W, V - M) == (9, 9) or M - W > 0 < V - M
    assert np.isin(torn["w"].keys, torn["m"].keys).all()
    assert np.isin(torn["m"].keys, torn["v"].keys).all()


def test_reject_says_what_is_missing_and_changes_nothing(
    client: Client, namespace: str, torn: dict[str, PartRows]
) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS)
    table.update([1], {part: np.ones((1, 8), np.float32) for part in PARTS}, version=5)
    with pytest.raises(ImportRefused) as refused:
        table.import_parts(torn, "reject")
    report = refused.value.report
    found = {(one.part, one.other): one for one in report.differences}
    assert {pair: one.missing for pair, one in found.items()} == {
        ("m", "w"): M - W, ("v", "m"): V - M, ("v", "w"): V - W,
    }  # fmt: skip
    versions = versions_of(torn)
    for (part, other), one in found.items():
        missing = np.setdiff1d(torn[part].keys, torn[other].keys)
        assert one.examples == tuple(missing[:5].tolist())
        of_missing = [versions[key] for key in missing.tolist()]
        assert one.versions == (min(of_missing), max(of_missing))
        assert str(one.missing) in str(one)
    assert report.mixtures == []
    assert table.check().rows == 1
    assert table.import_parts(torn, "reject", dry_run=True).differences == report.differences
    assert table.check().rows == 1


@pytest.mark.parametrize(("policy", "rows", "dropped", "filled"), [
    ("drop", W, V - W, {}),
    ("default", V, 0, {"w": V - W, "m": V - M}),
])  # fmt: skip
def test_b2_every_element_was_supplied_or_declared(
    client: Client, namespace: str, torn: dict[str, PartRows], tmp_path: Path,
    policy: str, rows: int, dropped: int, filled: dict[str, int],
) -> None:  # fmt: skip
    """Checked on every element of every row; twice, to identical files."""
    table = EmbeddingTable(client, namespace, COLUMNS)
    assert table.import_parts(torn, policy, dry_run=True).rows == rows
    assert table.check().rows == 0
    files = []
    for number in range(2):
        report = table.import_parts(torn, policy)
        assert (report.rows, report.dropped, report.filled, report.committed) == (rows, dropped, filled, True)
        assert report.keys == COUNTS
        table.snapshot(tmp_path / f"{number}.npz")
        files.append((tmp_path / f"{number}.npz").read_bytes())
    assert files[0] == files[1]
    snapshot = table.snapshot(tmp_path / "2.npz").rows
    expected_keys = np.sort(torn["w" if policy == "drop" else "v"].keys)
    assert (snapshot.keys == expected_keys).all()
    versions = versions_of(torn)
    assert snapshot.version.tolist() == [versions[key] for key in snapshot.keys.tolist()]
    for part in PARTS:
        supplied = np.isin(snapshot.keys, torn[part].keys)
        expected = np.full((rows, 8), DEFAULTS[part], dtype=np.float32)
        expected[supplied] = rows_of(snapshot.keys[supplied], snapshot.version[supplied], part)
        assert snapshot.parts[part].tobytes() == expected.tobytes()
        assert not (np.abs(snapshot.parts[part]) >= POISON).any()


def test_parts_come_from_files(client: Client, namespace: str, torn: dict[str, PartRows], tmp_path: Path) -> None:
    sources = {}
    for part, rows in torn.items():
        sources[part] = tmp_path / f"{part}.npz"
        assert rows.versions is not None
        np.savez(
            sources[part], keys=rows.keys[:500], values=rows.values[:500], versions=rows.versions[:500],
            frequencies=rows.versions[:500] % 7,
        )  # fmt: skip
    table = EmbeddingTable(client, namespace, COLUMNS)
    report = table.import_parts(sources, "default")
    assert report.rows == np.unique(np.concatenate([rows.keys[:500] for rows in torn.values()])).size
    keys = torn["v"].keys[:500]
    found = table.lookup(keys)
    assert (found.frequency == found.version % 7).all()
    assert (found.parts["v"] == torn["v"].values[:500]).all()


def test_parts_of_two_generations_are_no_row(client: Client, namespace: str) -> None:
    """A key whose parts have different versions: reported by pair, and left out or of the older version."""
    table = EmbeddingTable(client, namespace, COLUMNS)
    keys = np.arange(10)
    early, late = np.full(10, 3), np.where(keys < 4, 8, 3)
    torn = {part: PartRows(keys, rows_of(keys, early, part), early) for part in PARTS}
    torn["v"] = PartRows(keys, rows_of(keys, late, "v"), late)
    with pytest.raises(ImportRefused) as refused:
        table.import_parts(torn)
    found = refused.value.report.mixtures
    assert {(one.part, one.other, one.keys, one.versions) for one in found} == {
        ("m", "v", 4, (3, 8)), ("v", "w", 4, (3, 8)),
    }  # fmt: skip
    assert table.import_parts(torn, "drop").dropped == 4
    assert table.lookup(keys).found.tolist() == (keys >= 4).tolist()
    assert table.import_parts(torn, "default").rows == 10
    assert set(table.lookup(keys).version) == {3}


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"keys": [1, 1, 1]}, DuplicateKeys, "w: 2"),
        ({"keys": [1, 2]}, RowsInvalid, "2 keys and 3 values"),
        ({"versions": [1]}, RowsInvalid, "1 versions for 3 keys"),
        ({"values": np.zeros((3, 7), np.float32)}, RowsInvalid, "shape"),
        ({"values": np.zeros((3, 8))}, RowsInvalid, "float64"),
        ({"values": np.float32(1)}, RowsInvalid, "0 values"),
    ],
)
def test_b4_lists_that_do_not_fit_are_refused_with_counts(
    client: Client, namespace: str, change: dict[str, Any], error: type[RowsInvalid], said: str
) -> None:
    table = EmbeddingTable(client, namespace, COLUMNS)
    whole: dict[str, Any] = {"keys": np.arange(3), "values": np.zeros((3, 8), np.float32), "versions": None}
    sources = {part: PartRows(**whole) for part in PARTS}
    sources["w"] = PartRows(**{**whole, **{n: v if np.isscalar(v) else np.asarray(v) for n, v in change.items()}})
    for policy in ("reject", "drop", "default"):
        with pytest.raises(error, match=said):
            table.import_parts(sources, policy)
    with pytest.raises(RowsInvalid):
        table.import_parts({**sources, "none": sources["m"]})
    with pytest.raises(ValueError, match="policy"):
        table.import_parts(sources, "guess")
    assert table.check().rows == 0


def test_b2_a_part_without_default_can_not_be_filled(client: Client, namespace: str) -> None:
    table = EmbeddingTable(client, namespace, [Column("w", "float32", (8,)), *COLUMNS[1:]])
    sources = {part: PartRows(np.arange(3), np.zeros((3, 8), np.float32)) for part in PARTS}
    sources["w"] = PartRows(np.arange(2), np.zeros((2, 8), np.float32))
    with pytest.raises(NoDefault) as missing:
        table.import_parts(sources, "default")
    assert (missing.value.part, missing.value.missing) == ("w", 1)
