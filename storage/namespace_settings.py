"""What an operator sets for a namespace: quota, defaults of its puts, and how readily its entries go.

On the device the settings are the map of a namespace's catalogue record: a code for each setting that differs from
its default, whole numbers and texts only.
"""

from __future__ import annotations

import enum
import math
import random
from dataclasses import dataclass

from storage.entries import Durability
from storage.errors import ParameterInvalid
from storage.format.layout import Defect, Undecodable
from storage.limits import TTL_MAX_SECONDS
from storage.schema import OnMissing, PartSpec, check_specs, decode_specs, encode_specs

EVICTION_WEIGHT_MAX_PERCENT = 1000
QUOTA_BYTES_MAX = 1 << 62
QUOTA_ENTRIES_MAX = 1 << 40


class QuotaMode(enum.StrEnum):
    """What happens to a put that would exceed the quota."""

    SOFT = "soft"
    """Entries of the namespace itself make room for it."""
    HARD = "hard"
    """It is refused."""


@dataclass(frozen=True, slots=True)
class NamespaceSettings:
    """``quota_bytes`` counts bytes of slots, as usage does; None: no quota, no default."""

    quota_bytes: int | None = None
    quota_entries: int | None = None
    quota_mode: QuotaMode = QuotaMode.SOFT
    default_ttl_seconds: int | None = None
    sliding_ttl: bool = False
    """A read moves the expiry of an entry that expires to at least now + ``default_ttl_seconds``."""
    ttl_jitter_percent: int = 0
    """An expiry is drawn from the last so many percent of the TTL, so that a herd does not expire at once."""
    default_durability: Durability | None = None
    eviction_weight_percent: int = 100
    """How long an unread entry is kept, relative to those of other namespaces."""
    parts: tuple[PartSpec, ...] = ()
    """The schema: what each record consists of; none: any value."""
    on_missing: OnMissing = OnMissing.REJECT
    schema_version: int = 0
    """Raised by one with each change of ``parts``; records of older versions stay as they are."""
    importing: bool = False
    """Not a namespace yet but what an import has gathered so far; it has no name to others before it is committed."""

    @property
    def has_quota(self) -> bool:
        return self.quota_bytes is not None or self.quota_entries is not None


DEFAULT_SETTINGS = NamespaceSettings()

RANGES = {
    "quota_bytes": (1, QUOTA_BYTES_MAX),
    "quota_entries": (1, QUOTA_ENTRIES_MAX),
    "default_ttl_seconds": (1, TTL_MAX_SECONDS),
    "ttl_jitter_percent": (0, 100),
    "eviction_weight_percent": (1, EVICTION_WEIGHT_MAX_PERCENT),
    "schema_version": (0, 1 << 31),
}


def check_settings(settings: NamespaceSettings) -> None:
    """Raises ParameterInvalid, naming the setting."""
    for name, (lowest, highest) in RANGES.items():
        value = getattr(settings, name)
        if value is not None and not lowest <= value <= highest:
            raise ParameterInvalid(f"{name} is from {lowest} to {highest}", parameter=name)
    check_specs(settings.parts)
    if settings.parts and not settings.schema_version:
        raise ParameterInvalid("a schema has a schema_version, from 1 on", parameter="schema_version")
    if settings.sliding_ttl and settings.default_ttl_seconds is None:
        raise ParameterInvalid("sliding_ttl needs default_ttl_seconds", parameter="sliding_ttl")


CODES = {
    "quota_bytes": "qb",
    "quota_entries": "qe",
    "quota_mode": "qm",
    "default_ttl_seconds": "dt",
    "sliding_ttl": "st",
    "ttl_jitter_percent": "tj",
    "default_durability": "dd",
    "eviction_weight_percent": "ew",
    "parts": "ps",
    "on_missing": "om",
    "schema_version": "sv",
    "importing": "im",
}
"""Names on the device, short: with all of them set, but without a schema, a record takes 225 of the 256 bytes that each
namespace has in the catalogue: settings 1 + 8 x 3 + values 9 + 9 + 5 + 5 + 1 + 1 + 8 + 3 = 66, name 130, length 2,
array 1, kind 1, seq 9, id 5, and 11 to spare. Schemas take more; all namespaces together stay within their share."""
_NAMES = {code: name for name, code in CODES.items()}


def encode_settings(settings: NamespaceSettings) -> dict[str, int | str]:
    """The map of the catalogue record."""
    encoded: dict[str, int | str] = {}
    for name, code in CODES.items():
        value = getattr(settings, name)
        if value != getattr(DEFAULT_SETTINGS, name):
            encoded[code] = _encode_value(value)
    return encoded


def _encode_value(value: object) -> int | str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return encode_specs(value)
    assert isinstance(value, int)
    return int(value)


def decode_settings(encoded: dict[str, int | str]) -> NamespaceSettings:
    """Strictly (B4): known codes, their types, their ranges. Raises Undecodable."""
    values: dict[str, object] = {}
    for code, value in encoded.items():
        name = _NAMES.get(code, "")
        if name in RANGES and type(value) is int:
            values[name] = value
        elif name in ("sliding_ttl", "importing") and type(value) is int and value == 1:
            values[name] = True
        elif name == "quota_mode" and value in QuotaMode.__members__.values():
            values[name] = QuotaMode(str(value))
        elif name == "on_missing" and value in OnMissing.__members__.values():
            values[name] = OnMissing(str(value))
        elif name == "parts" and type(value) is str:
            values[name] = decode_specs(value)
        elif name == "default_durability" and value in Durability.__members__.values():
            values[name] = Durability(str(value))
        else:
            raise Undecodable(Defect.INVALID, f"namespace settings: {code}")
    settings = NamespaceSettings(**values)  # type: ignore[arg-type]  # each was checked above
    try:
        check_settings(settings)
    except ParameterInvalid as error:
        raise Undecodable(Defect.INVALID, f"namespace settings: {error}") from error
    return settings


def expiry_of(settings: NamespaceSettings, ttl_seconds: int | None, now_seconds: float) -> int:
    """When a put expires, in whole seconds since 1970; 0 for never.

    Fractions of the present second are rounded up, so that without jitter an entry never lives shorter than asked.
    """
    ttl = settings.default_ttl_seconds if ttl_seconds is None else ttl_seconds
    if ttl is None:
        return 0
    if settings.ttl_jitter_percent:
        ttl -= round(random.random() * ttl * settings.ttl_jitter_percent / 100)
    return math.ceil(now_seconds) + max(1, ttl)
