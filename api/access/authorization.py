"""The token in an ``Authorization`` field: Bearer (RFC 6750), or as the password of Basic (RFC 7617), any user name."""

from __future__ import annotations

import base64
import binascii

FIELD_MAX_BYTES = 1024
"""Longer fields hold no token of ours, and are not decoded."""

_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def presented_token(field: bytes) -> bytes | None:
    """The token, or None for a field of another form."""
    if len(field) > FIELD_MAX_BYTES:
        return None
    scheme, _, rest = field.partition(b" ")
    rest = rest.strip()
    match scheme.lower():
        case b"bearer":
            return rest or None
        case b"basic":
            try:
                # Bazel writes - and _ where others write + and /.
                plain = base64.b64decode(rest.translate(_FROM_URL_SAFE), validate=True)
            except binascii.Error:
                return None
            # The user name has no colon; the password may.
            return plain.partition(b":")[2] or None
    return None
