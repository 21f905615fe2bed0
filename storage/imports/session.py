"""An import session: what it has received, and the words in which it is told."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from storage.imports.errors import ImportBusy
from storage.imports.key_lists import Digests, as_digests
from storage.imports.spool import Spool
from storage.namespaces import Namespace, NamespaceView
from storage.schema import PartSpec

EXAMPLES = 5
"""Keys named in a report for each difference."""


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
    deadline: float = 0.0
    parts: dict[str, Received] = field(default_factory=dict)
    state: ImportState = ImportState.OPEN
    committed_ratio: float = 0.0
    row_ids: list[int] = field(default_factory=list)
    """Slots of records written by the commit: held until it ends, so that nothing evicts them."""
    receiving: str = ""
    """The part on its way in."""

    def check_idle(self) -> None:
        """Raises ImportBusy unless it takes a part or a commit now."""
        if self.state is not ImportState.OPEN or self.receiving:
            raise ImportBusy(self.receiving or self.state.value)

    def close_spools(self) -> None:
        """Give back what the parts lie in. Does nothing the second time."""
        for received in self.parts.values():
            received.spool.close()
