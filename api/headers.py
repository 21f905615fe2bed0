"""Reading the header fields of a request, and the fields that every answer of a value carries."""

from __future__ import annotations

from collections.abc import Iterable

from api.errors import LengthRequired
from storage.errors import ParameterInvalid

RawHeaders = list[tuple[bytes, bytes]]

NO_SCRIPTS = b"x-content-type-options: nosniff\r\ncontent-security-policy: sandbox; default-src 'none'\r\n"
"""A value is whatever a client put. Opened in a browser it must not run as a page of the daemon, whose operator
routes are of the same origin."""

HIT = b"cache-status: rawblockd; hit\r\n"
MISS = (b"cache-status", b"rawblockd; fwd=miss")
CORRUPT = (b"cache-status", b"rawblockd; fwd=miss; detail=corrupt")
"""RFC 9211. A corrupt entry is a miss that says why (R8)."""


def line(name: bytes, value: bytes) -> bytes:
    """A header field as it is sent. Raises ValueError for a value that would be more than one."""
    if b"\n" in value or b"\r" in value or b"\0" in value:
        raise ValueError(f"the field {name.decode()} would end within its value")
    return name + b": " + value + b"\r\n"


def encode(headers: RawHeaders) -> bytes:
    """Header fields as they are sent."""
    return b"".join([line(name, value) for name, value in headers])


def read_fields(raw: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The fields by lower-case name; lines of one name are joined with a comma (RFC 9110, 5.3).

    So a field that may stand only once and stands twice fails its own check.
    """
    fields: dict[bytes, bytes] = {}
    for name, value in raw:
        if name in fields:
            fields[name] += b", " + value
        else:
            fields[name] = value
    return fields


def has_body(fields: dict[bytes, bytes]) -> bool:
    """True if the request announces a body of at least a byte (RFC 9110, 6.4.1)."""
    return b"transfer-encoding" in fields or fields.get(b"content-length", b"0") != b"0"


def refuse_upgrade_with_body(fields: dict[bytes, bytes]) -> None:
    """Raise ``ParameterInvalid`` for a body behind an offer to upgrade.

    The HTTP parser takes what follows such a head for another protocol, so the body never arrives. Without a body the
    offer is ignored (RFC 9110, 7.8).
    """
    if b"upgrade" in fields and has_body(fields):
        raise ParameterInvalid("a request with a body can't offer an upgrade", parameter="Upgrade")


def declared_length(fields: dict[bytes, bytes]) -> int:
    """Bytes of the body by Content-Length, or ``LengthRequired`` without one or with a transfer coding."""
    text = fields.get(b"content-length")
    if text is None or b"transfer-encoding" in fields:
        raise LengthRequired()
    # The HTTP parser has refused worse already, but not every server has the same parser.
    if not text.isdigit() or len(text) > 20:
        raise ParameterInvalid("Content-Length is not a number of bytes", parameter="content-length")
    return int(text)


def etag(write_id: int) -> bytes:
    """The strong entity tag of a write id: 16 hexadecimal digits, quoted."""
    return b'"%016x"' % write_id
