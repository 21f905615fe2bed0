"""Named maxima of the HTTP layer (L1). Reaching one is a defined answer, never memory growth."""

from __future__ import annotations

from storage.limits import SLAB_MAX_BYTES

TTL_MAX_SECONDS = 2**31 - 1
"""Largest time to live: 68 years, the largest age HTTP caches must understand (RFC 9111, 1.2.2)."""

SEND_MAX_BYTES = 256 * 1024
"""Largest body message of an answer that comes in several pieces. A client that doesn't take one of them within the
send timeout is stalled, so with 30 s the slowest client served has 8 KiB/s. Smaller messages cost throughput."""

TRICKLE_BYTES = 64 * 1024
"""What a client must send of a body within each body timeout (or all of it, if it is smaller): with 30 s the slowest
upload served has 2 KiB/s. Without it, a byte now and then would hold a slot and a buffer for ever."""

LINGER_MAX_BYTES = SLAB_MAX_BYTES
LINGER_MAX_SECONDS = 5.0
"""How much of an unread body, and for how long, is thrown away behind an error answer before the connection is closed:
closing at once would reset the connection, and the client might never see the answer. No value exceeds a slab."""

ETAGS_MAX = 64
"""Entity tags in one condition."""

SKIPPED_PAGE_MAX = 1000
"""Skipped entries in one page of the recovery report."""
