"""ccache's HTTP storage: ``remote_storage = http://HOST:PORT/ccache``.

All its layouts: ``subdirs`` (``ab/cdef…``, the default), ``flat`` (``abcdef…``) and ``bazel`` (``ac/`` and 64 digits).
"""

from __future__ import annotations

from api.doors.door import Door, Route, below
from api.doors.selection import DoorName
from api.values_delete import answer_delete
from api.values_get import answer_get, answer_head
from api.values_put import answer_put

_DIGEST = b"[0-9a-v]{%d,64}"
"""Old versions of ccache write the most of a digest in base 32, newer ones all of it in base 16."""
_PATTERN = b"|".join([b"[0-9a-f]{2}/" + _DIGEST % 16, _DIGEST % 18, b"ac/[0-9a-f]{64}"])
_FORM = "the path is not one of ccache's layouts subdirs, flat and bazel"

ENTRIES = Route(
    "/ccache/{key}",
    below(b"/", _PATTERN, _FORM),
    {"GET": answer_get, "HEAD": answer_head, "PUT": answer_put, "DELETE": answer_delete},
    "[0-9a-f]{40}",
)


def find(path: bytes) -> Route | None:
    return ENTRIES if len(path) > 1 else None


CCACHE = Door(DoorName.CCACHE, (ENTRIES,), find)
