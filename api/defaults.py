"""What holds for a request that doesn't say: its namespace's default, then the daemon's."""

from __future__ import annotations

from api.value_request import ValueRequest
from storage.entries import Durability


def durability_of(request: ValueRequest, named: Durability | None) -> Durability:
    """The level of a mutation: the one that was named, else the namespace's, else the daemon's."""
    if named is not None:
        return named
    default = request.engine.namespace_settings(request.namespace).default_durability
    return request.settings.default_durability if default is None else default


def expiry_of(request: ValueRequest, ttl_seconds: int | None) -> int:
    """When a value put now expires, in seconds since 1970; 0 for never, as for a TTL of 0. None: the namespace's."""
    if ttl_seconds == 0:
        return 0
    return request.engine.expires_at(request.namespace, ttl_seconds)
