"""What an import has received, how it is told, and which records come of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

from storage.key_lists import Digests, Positions, as_digests, missing_in, positions_in
from storage.namespaces import Namespace, NamespaceView
from storage.schema import PartSpec
from storage.spool import Spool


class ImportPolicy(enum.StrEnum):
    """What becomes of keys that are not in every part."""

    REJECT = "reject"
    DROP = "drop"
    DEFAULT = "default"
    """The schema's declared number stands in, and is counted."""


class ImportState(enum.StrEnum):
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class PartView:
    name: str
    keys: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """Keys that part ``has`` has and part ``lacks`` has not: how many, and some of them."""

    has: str
    lacks: str
    keys: int
    examples: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ImportView:
    import_id: str
    owner: str
    namespace: str
    state: ImportState
    parts: tuple[PartView, ...]
    held_bytes: int
    expires_in_seconds: float
    committed_ratio: float


@dataclass(frozen=True, slots=True)
class ImportResult:
    """``filled`` counts keys per part that got the declared number; ``dropped`` those that were not complete."""

    namespace: NamespaceView
    filled: dict[str, int]
    dropped: int


@dataclass(slots=True, eq=False)
class Received:
    """One part: its keys in the order they came, and a spool with their rows."""

    spec: PartSpec
    spool: Spool
    digests: bytearray = field(default_factory=bytearray)
    """Under the id that the session began with: they tell keys apart, and nothing else goes by them."""
    keys: list[bytes] = field(default_factory=list)
    key_bytes: int = 0
    complete: bool = False

    def listed(self) -> Digests:
        return as_digests(self.digests)


@dataclass(slots=True, eq=False)
class ImportSession:
    import_id: str
    owner: str
    namespace: Namespace
    digest_id: int
    specs: tuple[PartSpec, ...]
    ttl_seconds: float
    deadline: float
    parts: dict[str, Received] = field(default_factory=dict)
    state: ImportState = ImportState.OPEN
    committed_ratio: float = 0.0
    row_ids: list[int] = field(default_factory=list)
    """Slots of records written by the commit: held until it ends, so that nothing evicts them."""
    receiving: str = ""


@dataclass(slots=True)
class Plan:
    """Records to be written: their keys, and for each part where the row stands in its list, -1 for the default."""

    keys: list[bytes]
    positions: dict[str, Positions]
    filled: dict[str, int]
    dropped: int


def combine(parts: list[Received], policy: ImportPolicy) -> Plan:
    """Keys of all parts in the order of their first appearance; only complete ones unless defaults stand in."""
    keys: list[bytes] = []
    digests = np.empty((0, 2), dtype=np.uint64)
    for received in parts:
        listed = received.listed()
        fresh = missing_in(listed, digests)
        keys += [received.keys[position] for position in fresh.tolist()]
        digests = np.concatenate((digests, listed[fresh]))
    positions = {received.spec.name: positions_in(digests, received.listed()) for received in parts}
    incomplete = np.zeros(len(keys), dtype=bool)
    for found in positions.values():
        incomplete |= found < 0
    dropped = int(incomplete.sum())
    if policy is ImportPolicy.DEFAULT:
        return Plan(keys, positions, {name: int((found < 0).sum()) for name, found in positions.items()}, 0)
    whole = np.flatnonzero(~incomplete)
    kept = {name: found[whole] for name, found in positions.items()}
    return Plan([keys[position] for position in whole.tolist()], kept, {}, dropped)
