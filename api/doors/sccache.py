"""sccache's WebDAV storage: ``SCCACHE_WEBDAV_ENDPOINT=http://HOST:PORT/sccache``.

The part of WebDAV (RFC 4918) that it uses. Entries lie flat under their whole path; a collection is nothing that could
be missing, full or evicted: every path that ends with a slash is one.
"""

from __future__ import annotations

from api.doors.door import Door, Route
from api.doors.selection import DoorName
from api.doors.webdav import answer_mkcol, answer_mkcol_at_entry, answer_propfind, answer_propfind_collection
from api.errors import BuildKeyInvalid
from api.value_paths import decode_key
from api.values_delete import answer_delete
from api.values_get import answer_get, answer_head
from api.values_put import answer_put
from storage.errors import DeviceFailed, Unavailable

_STEPS = (b"", b".", b"..")


def read_path(path: bytes) -> bytes:
    """The key of an entry: its path without the first slash. Raises ``KeyInvalid``."""
    key = decode_key(path[1:])
    if any(step in _STEPS for step in key.split(b"/")) or any(byte < 0x20 for byte in key):
        # A client or a proxy that tidies paths would find such an entry elsewhere.
        raise BuildKeyInvalid("the path has an empty part, a part of dots alone, or a control character")
    return key


def read_collection(path: bytes) -> bytes:
    """The path of a collection without its slashes at the ends: empty for the root. Raises ``KeyInvalid``."""
    inner = path.removesuffix(b"/")
    return read_path(inner) if inner else b""


ENTRIES = Route(
    "/sccache/{path}",
    read_path,
    {
        "GET": answer_get,
        "HEAD": answer_head,
        "PUT": answer_put,
        "DELETE": answer_delete,
        "PROPFIND": answer_propfind,
        "MKCOL": answer_mkcol_at_entry,
    },
    "[0-9a-z]+",
)
COLLECTIONS = Route(
    "/sccache/{path}/", read_collection, {"PROPFIND": answer_propfind_collection, "MKCOL": answer_mkcol}
)


def find(path: bytes) -> Route | None:
    return COLLECTIONS if not path or path.endswith(b"/") else ENTRIES


# sccache reads an entry when it starts, and does not start if that fails in any other way than by a miss.
SCCACHE = Door(DoorName.SCCACHE, (ENTRIES, COLLECTIONS), find, misses=(Unavailable, DeviceFailed))
