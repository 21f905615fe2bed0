"""The limit of open files: raised to what the connections need, as far as the system lets us."""

from __future__ import annotations

import resource

import structlog

log = structlog.stdlib.get_logger("rawblockd")

RESERVE = 128
"""Open files besides connections: the device, the ring, libraries, logs; and the connections answered 503."""


def allow_open_files(connections: int) -> int:
    """Raise the soft limit so that ``connections`` fit, at most to the hard one; the limit that holds then.

    The usual soft limit of 1024 is there for programs that use ``select``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning("fewer open files are allowed than connections need", allowed=allowed, needed=needed)
    return allowed
