"""A training loop over a table, whose daemon is killed: restored, it goes on as if nothing had happened, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rawblockd_client import Client
from rawblockd_client.table import Column, EmbeddingTable
from tests.support.daemon_process import DaemonProcess

WIDTH, ITEMS, BATCH = 8, 400, 64
BEFORE, AFTER = 7, 5
RATE, BETA_1, BETA_2, TINY = np.float32(0.05), np.float32(0.9), np.float32(0.999), np.float32(1e-8)
COLUMNS = [
    Column("w", "float32", (WIDTH,)),
    Column("m", "float32", (WIDTH,), 0.0),
    Column("v", "float32", (WIDTH,), 0.0),
]
SIZE = ("--create", "--size", "64MiB")


class Recommender:
    """Users and items in one table; how much a user likes an item is the product of their rows. Adam by hand."""

    def __init__(self, client: Client) -> None:
        self.table = EmbeddingTable(client, "model", COLUMNS, bucket_bytes=8192)

    def step(self, step: int) -> bytes:
        """One batch; the loss as its bits."""
        random = np.random.default_rng(step)
        users, items = random.integers(0, ITEMS, BATCH), random.integers(0, ITEMS, BATCH) + (1 << 32)
        likes = ((users * 7 + items * 3) % 5 < 2).astype(np.float32)
        keys, back = np.unique(np.concatenate([users, items]), return_inverse=True)
        start = np.random.default_rng(keys.astype(np.uint64)).normal(0, 0.1, (keys.size, WIDTH)).astype(np.float32)
        self.table.admit(keys, version=step, initial={"w": start})
        rows = self.table.lookup(keys)
        assert rows.found.all()
        w = rows.parts["w"]
        left, right = w[back[:BATCH]], w[back[BATCH:]]
        wrong = 1 / (1 + np.exp(-(left * right).sum(axis=1))) - likes
        slope = np.zeros_like(w)
        np.add.at(slope, back[:BATCH], wrong[:, None] * right)
        np.add.at(slope, back[BATCH:], wrong[:, None] * left)
        self.table.update(keys, adam(rows.parts, slope, step), version=step)
        return bytes(np.float32((wrong**2).mean()).tobytes())


def adam(parts: dict[str, Any], slope: Any, step: int) -> dict[str, Any]:
    m = BETA_1 * parts["m"] + (1 - BETA_1) * slope
    v = BETA_2 * parts["v"] + (1 - BETA_2) * slope**2
    whole_m, whole_v = m / (1 - BETA_1**step), v / (1 - BETA_2**step)
    return {"w": parts["w"] - RATE * whole_m / (np.sqrt(whole_v) + TINY), "m": m, "v": v}


def test_d2_a_restored_training_goes_on_bit_by_bit(tmp_path: Path) -> None:
    device = ("--device", str(tmp_path / "device"))
    with DaemonProcess(tmp_path / "log", *device, *SIZE) as daemon:
        daemon.wait_ready()
        with Client(f"http://127.0.0.1:{daemon.port}") as client:
            model = Recommender(client)
            for step in range(1, BEFORE + 1):
                model.step(step)
            model.table.snapshot(tmp_path / "saved.npz")
            losses = [model.step(step) for step in range(BEFORE + 1, BEFORE + AFTER + 1)]
            model.table.snapshot(tmp_path / "unbroken.npz")
        daemon.kill()
    unbroken = (tmp_path / "unbroken.npz").read_bytes()
    with DaemonProcess(tmp_path / "log2", *device) as daemon:
        daemon.wait_ready()
        with Client(f"http://127.0.0.1:{daemon.port}") as client:
            model = Recommender(client)
            model.table.snapshot(tmp_path / "recovered.npz")
            assert (tmp_path / "recovered.npz").read_bytes() == unbroken, "what was acknowledged survived the kill"
            model.table.restore(tmp_path / "saved.npz")
            model.table.snapshot(tmp_path / "restored.npz")
            assert (tmp_path / "restored.npz").read_bytes() == (tmp_path / "saved.npz").read_bytes()
            assert [model.step(step) for step in range(BEFORE + 1, BEFORE + AFTER + 1)] == losses
            model.table.snapshot(tmp_path / "again.npz")
            assert (tmp_path / "again.npz").read_bytes() == unbroken
        assert daemon.stop() == 0
    (tmp_path / "device").unlink()
