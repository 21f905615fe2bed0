"""What stands before a value in a batch put: the fields of an entry, and those of the whole batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.batch.fields import Fields
from api.conditions import ANY, conditions_of_tags
from api.digests import DigestCheck, read_digests
from api.limits import BATCH_ENTRIES_MAX, BATCH_HEAD_MAX_BYTES, ETAGS_MAX
from api.metadata import META_PREFIX, read_content_type, read_metadata
from api.parts import parts_of_list
from storage.entries import UNCONDITIONAL, Conditions, Durability
from storage.errors import MetadataInvalid
from storage.format.parts import Part

_OPTIONS = frozenset({"durability", "ttl", "entries"})
_ENTRY = frozenset({"key", "ttl", "content_type", "meta", "if_none_match", "if_match", "digest", "parts"})
_META_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class BatchOptions:
    durability: Durability | None
    ttl_seconds: int | None
    """For entries that name none; 0 for never."""
    entries: int | None
    """How many the client says it sends."""


@dataclass(frozen=True, slots=True)
class EntryFields:
    ttl_seconds: int | None
    content_type: str
    metadata: tuple[tuple[str, str], ...]
    conditions: Conditions
    check: DigestCheck | None
    parts: tuple[Part, ...] = ()


PLAIN = EntryFields(None, "", (), UNCONDITIONAL, None)
"""Of an entry that is nothing but key and value."""


def read_options(found: Mapping[str, Any], *, counted: bool = True) -> BatchOptions:
    """Raises ParameterInvalid. ``counted`` is False where the number of entries needs no telling."""
    fields = Fields(found, _OPTIONS if counted else _OPTIONS - {"entries"})
    count = fields.integer("entries", 0, BATCH_ENTRIES_MAX) if counted else None
    return BatchOptions(fields.durability(), fields.ttl(), count)


def read_entry(found: Mapping[str, Any], place: str = "") -> EntryFields:
    """The fields of an entry but its key. Raises ParameterInvalid of any field before MetadataInvalid."""
    if len(found) == 1 and "key" in found:
        return PLAIN
    fields = Fields(found, _ENTRY, place)
    ttl_seconds, conditions, parts = fields.ttl(), _conditions(fields), _parts(fields)
    check = None
    if (digest := fields.text("digest", BATCH_HEAD_MAX_BYTES)) is not None:
        check = read_digests({b"content-digest": digest.encode("utf-8")})
    header = _header_fields(fields)
    content_type = read_content_type(header)
    metadata = read_metadata(header, content_type)
    return EntryFields(ttl_seconds, content_type, metadata, conditions, check, parts)


def _header_fields(fields: Fields) -> dict[bytes, bytes]:
    """What a put has in its header, so that the same rules hold and the same code reads it."""
    header: dict[bytes, bytes] = {}
    meta = fields.get("meta")
    if meta is not None and (type(meta) is not dict or not all(type(value) is str for value in meta.values())):
        raise fields.refusal("meta", "is a map of text")
    if (content_type := fields.text("content_type", BATCH_HEAD_MAX_BYTES)) is not None:
        header[b"content-type"] = _latin_1(content_type)
    if meta is None:
        return header
    for name, value in meta.items():
        lower = META_PREFIX + name.lower().encode("utf-8", "replace")
        if _META_NAME.fullmatch(name) is None or lower in header:
            raise MetadataInvalid("the name of a metadata field is not a token, or stands twice")
        header[lower] = _latin_1(value)
    return header


def _parts(fields: Fields) -> tuple[Part, ...]:
    """Whether they are what they should be, the engine decides."""
    listed = fields.get("parts")
    parts = () if listed is None else parts_of_list(listed)
    if parts is None:
        raise fields.refusal("parts", "is a list of [name, dtype, [size, …]]")
    return parts


def _conditions(fields: Fields) -> Conditions:
    absent = fields.flag("if_none_match")
    tags = fields.get("if_match")
    if tags is None:
        return Conditions(must_be_absent=True) if absent else UNCONDITIONAL
    if type(tags) is not list or not 1 <= len(tags) <= ETAGS_MAX or not all(type(tag) is str for tag in tags):
        raise fields.refusal("if_match", f"is a list of up to {ETAGS_MAX} ETags, or of {ANY!r}")
    return conditions_of_tags(tags, must_be_absent=absent)


def _latin_1(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise MetadataInvalid("only characters of ISO 8859-1 are kept") from None
