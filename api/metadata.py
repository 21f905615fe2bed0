"""What is kept with a value besides its bytes: ``Content-Type`` and ``Rawblockd-Meta-*``.

Both come back as header fields, so nothing is accepted that could not be one: no control characters, no other
characters than those of ISO 8859-1.
"""

from __future__ import annotations

import re
from functools import lru_cache

from api.headers import line
from storage.entries import EntryInfo
from storage.errors import MetadataInvalid
from storage.limits import METADATA_MAX_BYTES, METADATA_MAX_ITEMS

META_PREFIX = b"rawblockd-meta-"
DEFAULT_CONTENT_TYPE = b"application/octet-stream"

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_PARAMETER = _TOKEN + rb"=(?:" + _TOKEN + rb"|" + _QUOTED + rb")"
# Blanks before a parameter belong to it alone: a pattern that can split them two ways takes exponential time.
_MEDIA_TYPE = re.compile(_TOKEN + rb"/" + _TOKEN + rb"(?:[ \t]*;(?:[ \t]*" + _PARAMETER + rb")?)*[ \t]*")
_TEXT = re.compile(rb"[\t -~\x80-\xff]*")


def read_content_type(fields: dict[bytes, bytes]) -> str:
    """The media type to keep (RFC 9110, 8.3), ``""`` if none was given. Raises ``MetadataInvalid``."""
    text = fields.get(b"content-type")
    if text is None:
        return ""
    if len(text) > METADATA_MAX_BYTES or _MEDIA_TYPE.fullmatch(text) is None:
        raise MetadataInvalid("Content-Type is not a media type")
    return text.decode("latin-1")


def read_metadata(fields: dict[bytes, bytes], content_type: str) -> tuple[tuple[str, str], ...]:
    """Client metadata as (name, value), names in lower case and without the prefix. Raises ``MetadataInvalid``."""
    items: list[tuple[str, str]] = []
    used_bytes = len(content_type.encode())
    for name, value in fields.items():
        if not name.startswith(META_PREFIX):
            continue
        if len(name) == len(META_PREFIX) or _TEXT.fullmatch(value) is None:
            raise MetadataInvalid("a Rawblockd-Meta- field has no name, or a value that is not text")
        item = (name[len(META_PREFIX) :].decode("ascii"), value.decode("latin-1"))
        items.append(item)
        used_bytes += len(item[0]) + len(item[1].encode())
    if len(items) > METADATA_MAX_ITEMS or used_bytes > METADATA_MAX_BYTES:
        raise MetadataInvalid(
            f"{len(items)} fields, {used_bytes} bytes; at most {METADATA_MAX_ITEMS} and {METADATA_MAX_BYTES} are kept",
            items=len(items),
            metadata_bytes=used_bytes,
        )
    return tuple(items)


def metadata_lines(info: EntryInfo) -> bytes:
    """The content type and the client metadata of an entry as header fields."""
    lines = _type_line(info.content_type)
    for name, value in info.metadata:
        lines += line(META_PREFIX + name.encode("ascii"), value.encode("latin-1"))
    return lines


@lru_cache(maxsize=256)
def _type_line(content_type: str) -> bytes:
    return line(b"content-type", content_type.encode("latin-1") if content_type else DEFAULT_CONTENT_TYPE)
