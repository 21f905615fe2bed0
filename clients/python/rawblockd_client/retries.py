"""When a request is made again, and how long to wait before."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from rawblockd_client.errors import ClientError, ConnectionFailed, DeadlineExceeded, Problem, may_succeed_later
from rawblockd_client.problems import FlushFailed


@dataclass(frozen=True)
class Retries:
    """Full jitter: each pause is drawn between 0 and a bound that doubles up to ``pause_max_seconds``, behind what
    ``Retry-After`` asks for. No pause goes beyond the deadline: then the last error is raised at once."""

    deadline_seconds: float = 30.0
    pause_seconds: float = 0.05
    pause_max_seconds: float = 2.0


NO_RETRIES = Retries(deadline_seconds=0.0)


class Attempts:
    """The attempts of one request. ``repeatable`` is False if it must not take effect twice."""

    def __init__(self, retries: Retries, *, repeatable: bool) -> None:
        self._retries = retries
        self._repeatable = repeatable
        self._ends_at = time.monotonic() + retries.deadline_seconds
        self._failed = 0

    def timeout_seconds(self, timeout_seconds: float) -> float:
        """How long the next attempt may wait for the daemon: the whole timeout for the first, then the deadline too."""
        if not self._failed:
            return timeout_seconds
        return max(0.001, min(timeout_seconds, self._ends_at - time.monotonic()))

    def pause_after(self, error: ClientError) -> float:
        """Seconds to wait before the next attempt. Raises the error if there is none."""
        least = self._least_pause(error)
        if least is None:
            raise error
        bound = min(self._retries.pause_max_seconds, self._retries.pause_seconds * 2.0 ** min(self._failed, 30))
        self._failed += 1
        pause = least + random.uniform(0.0, bound)
        if time.monotonic() + pause > self._ends_at:
            raise error
        return pause

    def _least_pause(self, error: ClientError) -> float | None:
        if isinstance(error, Problem):
            # A mutation whose flush failed is in effect: with a condition, a second one would fail by the first.
            if not may_succeed_later(error) or (isinstance(error, FlushFailed) and not self._repeatable):
                return None
            return error.retry_after_seconds or 0.0
        if isinstance(error, (ConnectionFailed, DeadlineExceeded)) and self._repeatable:
            return 0.0
        return None
