"""Heads of requests that a connection has seen before, so that only their first line is read.

A client repeats itself: but for the path, and the length of a body, the head of a request is the one before. The
parser read and judged it then; the same bytes mean the same now. Only methods and paths of one value are taken so,
which the parser would take as they are, without a query. The body that follows is spared the parser too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from api.value_paths import PREFIX
from storage.limits import KEY_MAX_BYTES, NAMESPACE_MAX_CHARS

HEADS_MAX = 8
"""Remembered for each connection: reads, and puts with and without something special."""
HEAD_MAX_BYTES = 2048
"""A longer one is not remembered."""

_HEAD = re.compile(
    rb"(GET|PUT|HEAD|DELETE) (%b[A-Za-z0-9._-]{1,%d}/[!$%%&'()*+,./0-9:;=@A-Z_a-z~-]{1,%d}) HTTP/1\.1(?:\r\n|\Z)(.*)"
    % (PREFIX, NAMESPACE_MAX_CHARS, 3 * KEY_MAX_BYTES),
    re.DOTALL,
)
"""Method, path and header fields."""
_LENGTH = re.compile(rb"(?:^|\r\n)content-length:[ ]?([0-9]{1,15})(?=\r\n|\Z)", re.IGNORECASE)
_END = b"\r\n\r\n"
_METHODS = {method.encode(): method for method in ("GET", "PUT", "HEAD", "DELETE")}

_UNLIKE = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
"""Fields that have to do with the connection, or with where the message ends. ``Connection: keep-alive``, which many
clients send, says nothing to HTTP/1.1."""


class Head(NamedTuple):
    """A head as it was found at the start of what was read."""

    method: str
    raw_path: bytes
    rest: bytes
    """The lines of the header fields, but for a length."""
    length_text: bytes
    """The Content-Length, empty without one."""
    size_bytes: int
    """Where the body begins."""


def find_head(buffer: bytearray, count: int) -> Head | None:
    """The head that is whole in the first ``count`` bytes; None if it isn't, or is not of the common form."""
    end = buffer.find(_END, 0, count)
    if end < 0:
        return None
    found = _HEAD.match(buffer, 0, end)
    if found is None:
        return None
    method, raw_path, rest = found.groups()
    if method != b"PUT":
        return Head(_METHODS[method], raw_path, rest, b"", end + len(_END))
    length = _LENGTH.search(rest)
    if length is None:
        return Head("PUT", raw_path, rest, b"", end + len(_END))
    rest = rest[: length.start()] + rest[length.end() :]
    return Head("PUT", raw_path, rest, length[1], end + len(_END))


class KnownHeads:
    """Header fields by the bytes they were read from. One for each connection: what one client sends is nobody's but
    its own."""

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[bytes, dict[bytes, bytes]] = {}

    def fields(self, head: Head) -> dict[bytes, bytes] | None:
        """The fields of a head like one before; None for one that the parser must read."""
        known = self._fields.get(head.rest)
        if known is None or not head.length_text:
            return known
        return {**known, b"content-length": head.length_text}

    def remember(self, head: Head, fields: dict[bytes, bytes]) -> None:
        """The parser took ``head`` and made ``fields`` of it."""
        rest = head.rest
        if len(rest) > HEAD_MAX_BYTES or not _UNLIKE.isdisjoint(fields) or b"\r\n " in rest or b"\r\n\t" in rest:
            # A folded line could stand behind the length that is cut out, and mean something else there.
            return
        if fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
            return
        if fields.get(b"content-length", b"") != head.length_text or rest in self._fields:
            return
        if len(self._fields) >= HEADS_MAX:
            self._fields.clear()
        known = dict(fields)
        known.pop(b"content-length", None)
        self._fields[head.rest] = known
