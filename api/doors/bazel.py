"""Bazel's HTTP cache (bazel.build/remote/caching): ``--remote_cache=http://HOST:PORT/bazel``.

A content-addressed store below ``/cas/`` and an action cache below ``/ac/``. What is stored in the former must have the
SHA-256 that its path says; an action result is Bazel's own and is kept as it is.
"""

from __future__ import annotations

from api.doors.door import Door, Route, below
from api.doors.selection import DoorName
from api.value_request import ValueRequest
from api.values_get import answer_get, answer_head
from api.values_put import answer_put

_CAS = b"/cas/"
_AC = b"/ac/"
_HASH = b"[0-9a-f]{64}"
_FORM = "the last part of the path is a SHA-256: 64 digits of 0-9 a-f"


async def answer_put_blob(request: ValueRequest) -> int:
    """As any put, with the digest in the path as one that the body has to have. Raises ``DigestMismatch`` too."""
    return await answer_put(request, sha256=bytes.fromhex(request.key[len(_CAS) - 1 :].decode("ascii")))


BLOBS = Route(
    "/bazel/cas/{hash}",
    below(_CAS, _HASH, _FORM),
    {"GET": answer_get, "HEAD": answer_head, "PUT": answer_put_blob},
    _HASH.decode(),
)
ACTIONS = Route(
    "/bazel/ac/{hash}",
    below(_AC, _HASH, _FORM),
    {"GET": answer_get, "HEAD": answer_head, "PUT": answer_put},
    _HASH.decode(),
)


def find(path: bytes) -> Route | None:
    if path.startswith(_CAS):
        return BLOBS
    return ACTIONS if path.startswith(_AC) else None


BAZEL = Door(DoorName.BAZEL, (BLOBS, ACTIONS), find)
