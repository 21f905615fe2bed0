"""Snapshot files: an ``.npz`` that numpy opens, of the same bytes for the same rows wherever and whenever it is made.

    manifest.json              format, parts, counts, range of versions, SHA-256 of each array
    keys.npy                   int64[n], ascending
    frequency.npy version.npy  int64[n]
    part.NAME.npy              dtype[n, …] for each part
    candidate.keys.npy candidate.frequency.npy candidate.version.npy   keys below the filter

Members are stored without compression and with a fixed time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rawblockd_client.arrays import bytes_of
from rawblockd_client.table.columns import Array, Column, column_of
from rawblockd_client.table.errors import SnapshotDamaged
from rawblockd_client.table.joining import PartRows, Rows

FORMAT = "rawblockd-table-snapshot-1"
MANIFEST = "manifest.json"
_MOMENT = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_MODE = 0o644 << 16
_NPY = b"\x93NUMPY\x01\x00"
_NPY_ALIGN = 64

Candidates = tuple[Array, Array, Array]
"""Keys, frequencies and versions of keys that have no row yet."""


@dataclass(frozen=True)
class Snapshot:
    columns: tuple[Column, ...]
    filter_freq: int
    rows: Rows
    candidates: Candidates


def write_snapshot(path: str | Path, snapshot: Snapshot) -> None:
    """The file is there whole or not at all: it is written beside its place, flushed and moved there."""
    arrays = _arrays(snapshot)
    place = Path(path)
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                _write_member(archive, MANIFEST, [_manifest(snapshot, arrays)])
                for name, array in arrays.items():
                    _write_member(archive, f"{name}.npy", [_npy_header(array), _bytes_of(array)])
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    finally:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()


def read_snapshot(path: str | Path) -> Snapshot:
    """Everything verified against the manifest. Raises SnapshotDamaged, OSError."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if MANIFEST not in archive.files:
                raise SnapshotDamaged(f"{path} has no manifest")
            manifest = json.loads(bytes(archive[MANIFEST]))
            if manifest.get("format") != FORMAT:
                raise SnapshotDamaged(f"{path} is of format {str(manifest.get('format'))[:40]!r}")
            arrays = {name: archive[name] for name in manifest["sha256"]}
            if set(archive.files) != {MANIFEST, *arrays}:
                raise SnapshotDamaged(f"{path} has other members than its manifest")
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise SnapshotDamaged(f"{path}: {error}") from None
    for name, array in arrays.items():
        if _digest(array) != manifest["sha256"][name]:
            raise SnapshotDamaged(f"{path}: {name} is not what it was")
    return _snapshot_of(path, manifest, arrays)


def read_part(path: str | Path) -> PartRows:
    """A part saved by itself: an ``.npz`` with ``keys`` and ``values``, and ``versions`` and ``frequencies`` if known.

    Raises SnapshotDamaged, OSError.
    """
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise SnapshotDamaged(f"{path}: {error}") from None
    unknown = set(found) - {"keys", "values", "versions", "frequencies"}
    if unknown or not {"keys", "values"} <= set(found):
        raise SnapshotDamaged(f"{path} has keys and values, and perhaps versions and frequencies, and nothing else")
    return PartRows(found["keys"], found["values"], found.get("versions"), found.get("frequencies"))


def _arrays(snapshot: Snapshot) -> dict[str, Array]:
    rows = snapshot.rows
    arrays = {"keys": rows.keys, "frequency": rows.frequency, "version": rows.version}
    for column in snapshot.columns:
        arrays[f"part.{column.name}"] = rows.parts[column.name]
    for name, array in zip(("keys", "frequency", "version"), snapshot.candidates):
        arrays[f"candidate.{name}"] = array
    return arrays


def _manifest(snapshot: Snapshot, arrays: dict[str, Array]) -> bytes:
    version = snapshot.rows.version
    document = {
        "format": FORMAT,
        "parts": [column.document() for column in snapshot.columns],
        "filter_freq": snapshot.filter_freq,
        "rows": int(snapshot.rows.keys.size),
        "candidates": int(snapshot.candidates[0].size),
        "versions": [int(version.min()), int(version.max())] if version.size else None,
        "sha256": {name: _digest(array) for name, array in arrays.items()},
    }
    return json.dumps(document, indent=1).encode()


def _snapshot_of(path: str | Path, manifest: dict[str, Any], arrays: dict[str, Array]) -> Snapshot:
    try:
        columns = tuple(column_of(document) for document in manifest["parts"])
        parts = {column.name: arrays[f"part.{column.name}"] for column in columns}
        rows = Rows(arrays["keys"], arrays["frequency"], arrays["version"], parts)
        candidates = (arrays["candidate.keys"], arrays["candidate.frequency"], arrays["candidate.version"])
        counts = (int(rows.keys.size), int(candidates[0].size))
        if counts != (manifest["rows"], manifest["candidates"]):
            raise SnapshotDamaged(f"{path}: its manifest says {manifest['rows']} rows, it has {counts[0]}")
        return Snapshot(columns, int(manifest["filter_freq"]), rows, candidates)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotDamaged(f"{path}: {error}") from None


def _write_member(archive: zipfile.ZipFile, name: str, pieces: Sequence[bytes | memoryview]) -> None:
    info = zipfile.ZipInfo(name, _MOMENT)
    info.create_system = _UNIX
    info.external_attr = _MODE
    with archive.open(info, "w", force_zip64=True) as member:
        for piece in pieces:
            member.write(piece)


def _npy_header(array: Array) -> bytes:
    """Written here, since its padding has changed between versions of numpy."""
    descr = array.dtype.newbyteorder("<").str
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {array.shape!r}, }}".encode("latin-1")
    padding = -(len(_NPY) + 2 + len(text) + 1) % _NPY_ALIGN
    text += b" " * padding + b"\n"
    return _NPY + len(text).to_bytes(2, "little") + text


def _bytes_of(array: Array) -> memoryview:
    return bytes_of(np.ascontiguousarray(array))


def _digest(array: Array) -> str:
    """Over type, shape and bytes."""
    found = hashlib.sha256(_npy_header(array))
    found.update(_bytes_of(array))
    return found.hexdigest()
