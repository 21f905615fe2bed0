"""Which entries give way when a slot class needs slots: one policy per device, chosen by the setting ``eviction``."""

from __future__ import annotations

from storage.eviction.clock import Clock
from storage.eviction.interface import Eviction
from storage.eviction.none import NoEviction
from storage.eviction.s3fifo import S3Fifo
from storage.eviction.weights import Weights
from storage.namespaces import Namespaces
from storage.options import EvictionPolicy
from storage.slot_table import SlotTable


def make_eviction(policy: EvictionPolicy, table: SlotTable, namespaces: Namespaces) -> Eviction:
    """The policy over a table that was just recovered: its queues are rebuilt from the rows."""
    if policy is EvictionPolicy.NONE:
        return NoEviction()
    kind = Clock if policy is EvictionPolicy.CLOCK else S3Fifo
    eviction = kind(table, Weights(namespaces))
    eviction.load()
    return eviction
