"""Sliding expiry: an entry that is read lives on."""

from __future__ import annotations

import math

from storage.commit import Commit
from storage.entries import Conditions
from storage.errors import PreconditionFailed, Unavailable
from storage.format.row import Row
from storage.namespace_settings import NamespaceSettings

STEPS = 16
"""A sliding expiry moves in steps of so much of its TTL: a key read without pause costs 16 rows a TTL."""


def slide(commit: Commit, settings: NamespaceSettings, row: Row, now: float) -> None:
    """Move the expiry of an entry that was read, where expiries slide, once that is worth a row of the journal. A read
    never waits for it."""
    ttl_seconds = settings.default_ttl_seconds
    if not settings.sliding_ttl or not row.expires_at or ttl_seconds is None:
        return
    expires_at = math.ceil(now) + ttl_seconds
    if expires_at - row.expires_at >= max(1, ttl_seconds // STEPS):
        try:
            commit.touch(row.digest, expires_at, Conditions(write_ids=frozenset({row.write_id})))
        except (PreconditionFailed, Unavailable):
            return  # replaced meanwhile, or it slides with a later read
