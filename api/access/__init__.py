"""Who may do what: tokens, roles, and the one decision ``require``. No framework code, no I/O but the token file's.

``gate.Gate`` makes ``Credentials`` of a request's header fields; ``require`` decides whether they suffice. Both take
plain values, so that every door of the daemon asks the same question in the same words.
"""

from __future__ import annotations

from api.access.credentials import EVERYBODY, Credentials, require, require_device
from api.access.roles import Role

__all__ = ["EVERYBODY", "Credentials", "Role", "require", "require_device"]
