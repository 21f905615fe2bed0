"""Gradle's build cache over HTTP (``HttpBuildCache``): ``url = "http://HOST:PORT/gradle/"``.

A GET is answered 200 or 404 and a PUT 2xx or 413; after anything else Gradle goes on without the remote cache for the
rest of the build. Its keys are hashes of 32 digits today; longer ones are let in too.
"""

from __future__ import annotations

from api.doors.door import Door, Route, below
from api.doors.selection import DoorName
from api.values_get import answer_get, answer_head
from api.values_put import answer_put

_HASH = b"[0-9a-f]{32,128}"
_FORM = "the path is a hash: 32 to 128 digits of 0-9 a-f"

ENTRIES = Route(
    "/gradle/{hash}",
    below(b"/", _HASH, _FORM),
    {"GET": answer_get, "HEAD": answer_head, "PUT": answer_put},
    _HASH.decode(),
)


def find(path: bytes) -> Route | None:
    return ENTRIES if len(path) > 1 and b"/" not in path[1:] else None


GRADLE = Door(DoorName.GRADLE, (ENTRIES,), find)
