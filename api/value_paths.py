"""From a raw request path to namespace and key.

``/v1/kv/{namespace}/{key}``: the key is all that follows the second slash, percent-decoded exactly once. Any byte is
legal in it: ``..``, ``%2F``, NUL and what isn't UTF-8 are bytes of a key, and nothing is normalised.

``/v1/kv/{namespace}`` and ``/v1/kv/{namespace}:{verb}`` are of a namespace as a whole. No name has a colon, so the
first one ends it; an escaped colon (``%3A``) is a character of the name, and not a legal one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from storage.errors import KeyInvalid, NamespaceInvalid
from storage.limits import KEY_MAX_BYTES, NAMESPACE_MAX_CHARS

PREFIX = b"/v1/kv/"
TEMPLATE = "/v1/kv/{namespace}/{key}"
NAMESPACE_TEMPLATE = "/v1/kv/{namespace}"
VERB_TEMPLATE = "/v1/kv/{namespace}:%s"

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_NAMESPACE = re.compile(rb"[A-Za-z0-9._-]{1,%d}" % NAMESPACE_MAX_CHARS)


def split_path(raw_path: bytes) -> tuple[bytes, bytes] | None:
    """Namespace and key of a path with ``PREFIX``, both still escaped; None without a slash between them."""
    namespace, slash, key = raw_path[len(PREFIX) :].partition(b"/")
    return (namespace, key) if slash else None


def split_verb(raw_path: bytes) -> tuple[bytes, bytes | None]:
    """Namespace, still escaped, and verb of a path without a key; None without a colon."""
    namespace, colon, verb = raw_path[len(PREFIX) :].partition(b":")
    return namespace, verb if colon else None


@lru_cache(maxsize=1024)
def decode_namespace(raw: bytes) -> str:
    """Raises ``NamespaceInvalid``."""
    # Escaped unreserved characters are the same name (RFC 3986, 2.3).
    plain = unquote_to_bytes(raw) if b"%" in raw else raw
    if _NAMESPACE.fullmatch(plain) is None:
        raise NamespaceInvalid()
    return plain.decode("ascii")


def decode_key(raw: bytes) -> bytes:
    """1 to 1024 bytes, or ``KeyInvalid``; also for a percent sign that no two hexadecimal digits follow."""
    if b"%" in raw:
        if _BAD_ESCAPE.search(raw):
            raise KeyInvalid("malformed percent escape in the key")
        raw = unquote_to_bytes(raw)
    if not 1 <= len(raw) <= KEY_MAX_BYTES:
        raise KeyInvalid(f"the key has {len(raw)} bytes", key_bytes=len(raw))
    return raw
