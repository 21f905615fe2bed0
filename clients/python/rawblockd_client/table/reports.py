"""What imports and checks found, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

Range = Optional[tuple[int, int]]
"""Lowest and highest; None where nothing is known."""

EXAMPLES = 5


@dataclass(frozen=True)
class Difference:
    """How the key lists of two parts differ."""

    part: str
    other: str
    missing: int
    """Keys of ``part`` that ``other`` lacks."""
    examples: tuple[int, ...]
    versions: Range
    """Of the missing keys, as ``part`` gives them."""

    def __str__(self) -> str:
        span = "" if self.versions is None else f", versions {self.versions[0]} to {self.versions[1]}"
        return f"{self.missing} keys of {self.part} are missing in {self.other}{span}, such as {list(self.examples)}"


@dataclass(frozen=True)
class Mixture:
    """Keys that two parts have at different versions: parts of different generations."""

    part: str
    other: str
    keys: int
    examples: tuple[int, ...]
    versions: Range

    def __str__(self) -> str:
        return (
            f"{self.keys} keys have different versions in {self.part} and {self.other}, such as {list(self.examples)}"
        )


@dataclass(frozen=True)
class Finding:
    """What a check found in one part. Nothing is altered because of it."""

    part: str
    non_finite: int
    above_limit: int
    examples: tuple[int, ...]
    """Keys of such rows."""


@dataclass
class ImportReport:
    """``differences`` has every ordered pair of parts of which the second lacks keys of the first."""

    policy: str
    keys: dict[str, int]
    """How many each part has."""
    differences: list[Difference] = field(default_factory=list)
    mixtures: list[Mixture] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    rows: int = 0
    """Rows that the table has afterwards, or would have."""
    dropped: int = 0
    filled: dict[str, int] = field(default_factory=dict)
    """Rows of each part that are its declared default."""
    committed: bool = False

    @property
    def is_torn(self) -> bool:
        return bool(self.differences or self.mixtures)


@dataclass
class TableReport:
    """The whole table as a check saw it."""

    rows: int = 0
    candidates: int = 0
    buckets: int = 0
    lost_buckets: int = 0
    stored_bytes: int = 0
    """Payload of the buckets."""
    findings: list[Finding] = field(default_factory=list)
    versions: Range = None
