"""What a table refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rawblockd_client.errors import ClientError

if TYPE_CHECKING:
    from rawblockd_client.table.reports import ImportReport


class TableError(ClientError):
    """Base of what tables raise on purpose."""


class TableMismatch(TableError):
    """The table that is there has other parts, or another filter, than the one asked for."""


class TableMissing(TableError):
    """There is no such table, or it has been wiped."""


class TableChanged(TableError):
    """Somebody else replaced the table's rows meanwhile; nothing of this replacement took effect."""


class BucketInvalid(TableError):
    """A record under a bucket's key is none of this table's."""


class RowsInvalid(TableError):
    """Keys or values that are not what the table's parts say; ``part`` names the part, if it is one."""

    def __init__(self, detail: str, part: str = "") -> None:
        super().__init__(f"part {part}: {detail}" if part else detail)
        self.part = part


class DuplicateKeys(RowsInvalid):
    """Keys that stand more than once in a list; ``counts`` says in which list how many too many."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        said = ", ".join(f"{name}: {count}" for name, count in counts.items())
        super().__init__(f"keys stand more than once ({said})")
        self.counts = dict(counts)


class NoDefault(RowsInvalid):
    """Rows lack a part for which no default is declared; ``missing`` is how many."""

    def __init__(self, part: str, missing: int) -> None:
        super().__init__(f"{missing} rows lack it, and it has no default", part)
        self.missing = missing


class ImportRefused(TableError):
    """The parts don't fit together, and the policy is to reject; ``report`` says how. Nothing was changed."""

    def __init__(self, report: ImportReport) -> None:
        super().__init__("the parts differ: " + "; ".join(map(str, report.differences)))
        self.report = report


class SnapshotDamaged(TableError):
    """A file that is no snapshot, or not as its manifest says."""
