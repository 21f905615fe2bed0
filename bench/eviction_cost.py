"""What eviction costs with many entries: time of each call, memory per entry.

    python -m bench.eviction_cost [--entries 1000000]

A slot table full of live rows, and a policy over it; no engine and no device. Absolute times are of this machine; a put
into a full device needs one ``on_store``, one ``on_free`` and one victim.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import numpy as np

from storage.eviction.clock import Clock
from storage.eviction.interface import ACCESS_MAX
from storage.eviction.queued import QueuedEviction
from storage.eviction.s3fifo import S3Fifo
from storage.eviction.weights import Weights
from storage.format.geometry import plan
from storage.format.row import FreeReason, SlotState
from storage.namespaces import Namespaces
from storage.slot_table import SlotTable

SLOT_BYTES = 4096
ROOM = 1.3
"""Device bytes per byte of slots."""
WANTED = 2048
ROUNDS = 20


def full_table(entries: int) -> SlotTable:
    """At least so many live rows of the smallest class, stored one after the other."""
    table = SlotTable(plan(int(entries * SLOT_BYTES * ROOM) + (256 << 20), smallest_slot_bytes=SLOT_BYTES))
    slabs = -(-entries // table.geometry.slots_per_slab(0))
    for slab in range(slabs):
        table.give_slab(slab, 0, 1, 1, 0)
    row_ids = table.row_ids()
    rows = table.lines[row_ids]
    rows["state"], rows["namespace_id"] = SlotState.LIVE, 1
    rows["seq"] = np.arange(len(rows)) + 2
    rows["digest"] = np.frombuffer(os.urandom(16 * len(rows)), dtype="V16")
    table.lines[row_ids] = rows
    return table


def measure(kind: type[QueuedEviction], table: SlotTable) -> dict[str, float]:
    """Microseconds of each call, milliseconds of a start: time of the processor."""
    entries = len(table.row_ids())
    policy = kind(table, Weights(Namespaces()))
    started = time.process_time()
    policy.load()
    result = {"load_milliseconds": (time.process_time() - started) * 1e3}
    seconds = dict.fromkeys(("victim", "free", "store"), 0.0)
    victims: list[int] = []
    for _ in range(ROUNDS):
        started = time.process_time()
        victims = policy.victims(0, WANTED, lambda _: True)
        chosen = time.process_time()
        rows = [table.row(row_id) for row_id in victims]
        decoded = time.process_time()
        for row_id, row in zip(victims, rows, strict=True):
            policy.on_free(row_id, row, FreeReason.EVICTED)
        freed = time.process_time()
        successors = [row._replace(digest=os.urandom(16)) for row in rows]
        table.lines["access"][victims] = 0
        storing = time.process_time()
        for row_id, row in zip(victims, successors, strict=True):
            policy.on_store(row_id, row)
        stored = time.process_time()
        seconds["victim"] += chosen - started
        seconds["free"] += freed - decoded
        seconds["store"] += stored - storing
    result |= {f"{name}_microseconds": total / ROUNDS / WANTED * 1e6 for name, total in seconds.items()}
    started = time.process_time()
    for row_id in victims:
        table.touch(row_id, ACCESS_MAX)
    result["hit_microseconds"] = (time.process_time() - started) / len(victims) * 1e6
    # The longest a call can take: everything was read.
    live = table.row_ids()
    table.lines["access"][live] |= ACCESS_MAX
    started = time.process_time()
    policy.victims(0, WANTED, lambda _: True)
    result["longest_call_milliseconds"] = (time.process_time() - started) * 1e3
    table.lines["access"][live] = 0
    return {name: round(value, 3) for name, value in result.items()} | {"entries": entries}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    arguments = parser.parse_args()
    table = full_table(arguments.entries)
    for name, kind in (("clock", Clock), ("s3fifo", S3Fifo)):
        sys.stdout.write(json.dumps({"policy": name} | measure(kind, table)) + "\n")


if __name__ == "__main__":
    main()
