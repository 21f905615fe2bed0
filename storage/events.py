"""The event feed: what became durable, in the order of seqs, kept for a while in a bounded ring.

Readers hold nothing but a place in the ring. One that is too slow falls out of it and is told to resync; nobody waits
for it. A place is given to clients as a ``Position``: the seq alone would not do, because a power loss may take rows
whose events were sent, and their seqs are given again.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from storage.errors import Draining, Starting, TooManySubscribers

STORED, DELETED, WIPED, IMPORTED = "stored", "deleted", "wiped", "imported"
EVENT_TYPES = (STORED, DELETED, WIPED, IMPORTED)

TOO_FAR_BEHIND, AHEAD, UNKNOWN_LOSS, OTHER_DEVICE = "too_far_behind", "ahead", "unknown_loss", "other_device"
RESYNC_REASONS = (TOO_FAR_BEHIND, AHEAD, UNKNOWN_LOSS, OTHER_DEVICE)

EVENT_BYTES = 320
"""What an event is counted with, besides its key: measured, with its place in the ring."""
SUBSCRIBERS_MAX = 64
LOOKED_AT_ONCE = 512
"""Events a reader looks at before others get their turn."""


class Event(NamedTuple):
    """One durable change. 0 and empty where something is not known or does not apply."""

    seq: int
    kind: str
    namespace: str
    write_id: int = 0
    reason: str = ""
    replaced: int = 0
    """Write id of the entry that this one replaced; there is no event of its own for that."""
    size_bytes: int = 0
    expires_at: int = 0
    key: bytes = b""
    slab: int = 0
    slot: int = 0
    """Where the record lies, or lay."""
    time: float = 0.0
    """Seconds since 1970; 0 for what happened before this start."""


_SEQ, _NAMESPACE, _KEY = (Event._fields.index(name) for name in ("seq", "namespace", "key"))


class Position(NamedTuple):
    """A place in the stream: everything up to ``seq`` is known, as written by start ``start`` of ``device``.

    ``start`` 0 and ``device`` empty: a bare seq, of which nobody can tell whether it is still the same one.
    """

    seq: int
    start: int = 0
    device: str = ""

    def __str__(self) -> str:
        return f"{self.seq}-{self.start}-{self.device}" if self.start else str(self.seq)

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ValueError."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:64]!r} is no position in the event stream")
        return cls(int(match[1]), int(match[2] or 0), match[3] or "")


_POSITION = re.compile(r"([0-9]{1,19})(?:-([1-9][0-9]{0,9})-([0-9a-f]{8}))?", re.ASCII)


class Resync(NamedTuple):
    """What was missed can't be told: whoever keeps an index makes it anew. Events after ``seq`` follow."""

    reason: str
    seq: int


@dataclass(slots=True)
class History:
    """What a recovery knows of events: those after ``floor``, whole; and which start wrote from which seq on."""

    floor: int = 0
    reason: str = TOO_FAR_BEHIND
    """Why there is nothing before ``floor``."""
    events: list[Event] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    """Start count and first seq of each start that the journal still reaches, ascending."""
    lost: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Row id → namespace and write id of puts that were announced and are lost: told as this start frees them."""


class EventFeed:
    """The ring. All calls on the loop's thread."""

    def __init__(self, memory_bytes: int) -> None:
        self._capacity = max(16, memory_bytes // EVENT_BYTES)
        self._ring: list[tuple[Any, ...] | None] = [None] * self._capacity
        """As plain tuples, which the garbage collector leaves alone: it would look at 50,000 events again and again."""
        self._memory_bytes = memory_bytes
        self._bytes = 0
        self.head = 0
        """Number of the next event; events ``tail`` to ``head`` - 1 are kept."""
        self.tail = 0
        self.seq = 0
        """Everything up to this seq is in the feed, or was."""
        self._floor = 0
        self._cut, self._cut_reason = 0, TOO_FAR_BEHIND
        self._starts: list[tuple[int, int]] = []
        self._start, self._device = 0, ""
        self._state: type[Starting | Draining] | None = Starting
        self._waiting: set[asyncio.Future[None]] = set()
        self.subscribers = 0
        self.counts = dict.fromkeys(EVENT_TYPES, 0)
        self.resyncs = dict.fromkeys(RESYNC_REASONS, 0)

    # -- filling --------------------------------------------------------------------------------------------------

    def begin(self, history: History, *, device: str, start: int, next_seq: int) -> None:
        """Take over what recovery knows; the rows of this start begin with ``next_seq``."""
        self._device, self._start = device, start
        self._starts = [*history.starts, (start, next_seq)]
        self._floor = history.floor
        self._cut, self._cut_reason = history.floor, history.reason
        for event in history.events:
            self._keep(tuple(event))
        self.seq = next_seq - 1

    def append(self, event: Event) -> None:
        """Add an event of a row just made durable. Its seq is higher than that of any before."""
        self._keep(tuple(event))
        self.counts[event.kind] += 1
        if self._waiting:
            self._wake()

    def stored(self, fields: tuple[Any, ...]) -> None:
        """As ``append``, of a stored event's fields: each put makes one."""
        self._keep(fields)
        self.counts[STORED] += 1
        if self._waiting:
            self._wake()

    def _keep(self, event: tuple[Any, ...]) -> None:
        size = EVENT_BYTES + len(event[_KEY])
        while self.head - self.tail >= self._capacity or self._bytes + size > self._memory_bytes:
            if self.tail == self.head:
                break
            self._drop()
        self._ring[self.head % self._capacity] = event
        self._bytes += size
        self.head += 1
        self.seq = event[_SEQ]

    def _drop(self) -> None:
        oldest = self.at(self.tail)
        self._ring[self.tail % self._capacity] = None
        self._bytes -= EVENT_BYTES + len(oldest.key)
        self._floor = oldest.seq
        self.tail += 1

    def cut(self, seq: int, reason: str) -> None:
        """Something happened at ``seq`` that no event can tell: whoever is not beyond it resyncs."""
        # Not one by one: there may be hundreds of thousands.
        self._ring, self._bytes, self.tail = [None] * self._capacity, 0, self.head
        self._floor = self._cut = self.seq = max(self.seq, seq)
        self._cut_reason = reason
        self._wake()

    def open(self) -> None:
        """Let subscribers in: the engine serves."""
        self._state = None

    def close(self) -> None:
        """End every subscription, and take no more: the engine stops."""
        self._state = Draining
        self._wake()

    @property
    def is_open(self) -> bool:
        return self._state is None

    @property
    def closed(self) -> bool:
        return self._state is Draining

    # -- reading --------------------------------------------------------------------------------------------------

    def last(self, count: int) -> list[Event]:
        """The newest ``count`` events kept, oldest first."""
        return [self.at(number) for number in range(max(self.tail, self.head - count), self.head)]

    def at(self, number: int) -> Event:
        event = self._ring[number % self._capacity]
        assert event is not None
        return Event._make(event)

    def namespace_at(self, number: int) -> str:
        """Of the event alone: a search looks at tens of thousands."""
        event = self._ring[number % self._capacity]
        assert event is not None
        name: str = event[_NAMESPACE]
        return name

    def position(self, seq: int) -> Position:
        return Position(seq, self._start, self._device)

    def subscribe(
        self, since: Position | None = None, *, last: int = 0, accepts: Callable[[str], bool] | None = None
    ) -> Subscription:
        """Follow the feed from a position, or from ``last`` events ago. ``accepts`` says which namespaces to show.

        Raises Starting, Draining, TooManySubscribers.
        """
        if self._state is not None:
            raise self._state
        if self.subscribers >= SUBSCRIBERS_MAX:
            raise TooManySubscribers(f"{SUBSCRIBERS_MAX} follow the events already")
        subscription = Subscription(self, accepts)
        if since is not None:
            subscription.resume(since)
        elif last:
            subscription.go_back(last)
        self.subscribers += 1
        return subscription

    def place_after(self, seq: int) -> int:
        """Number of the first event after ``seq``; none of them was dropped."""
        return bisect_right(range(self.tail, self.head), seq, key=lambda number: self.at(number).seq) + self.tail

    def why_not(self, since: Position) -> str:
        """Why the stream can't go on after ``since``; empty if it can."""
        if since.device and since.device != self._device:
            return OTHER_DEVICE
        if since.seq > self.seq or since.start > self._start:
            return AHEAD
        if since.start and since.start < self._start:
            # What that start wrote and what survived ends where the next one began.
            known, later = self._starts[0][0], (seq for start, seq in self._starts if start > since.start)
            if since.start >= known and since.seq >= next(later):
                return AHEAD
            if since.start < known:
                return self.behind(since.seq)
        return self.behind(since.seq) if since.seq < self._floor else ""

    def behind(self, seq: int) -> str:
        """Why what follows ``seq`` is not all there any more."""
        return self._cut_reason if seq < self._cut else TOO_FAR_BEHIND

    async def wait(self, number: int, timeout_seconds: float) -> None:
        """Return when there are events from ``number`` on, when the feed closes, or after the time."""
        if self.head > number or self.closed:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait([future], timeout=timeout_seconds)
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Subscription:
    """A reader's place in the feed. ``close`` in all cases; idempotent."""

    def __init__(self, feed: EventFeed, accepts: Callable[[str], bool] | None) -> None:
        self._feed = feed
        self._accepts = accepts
        self._next = feed.head
        self._resync: Resync | None = None
        self._open = True
        self.seq = feed.seq
        """Up to this seq everything was taken, or passed over."""

    def resume(self, since: Position) -> None:
        """Go on after a position, or resync."""
        reason = self._feed.why_not(since)
        if reason:
            self._fall_out(reason)
        else:
            self._next, self.seq = self._feed.place_after(since.seq), since.seq

    def go_back(self, count: int) -> None:
        """Begin with the last ``count`` events that are kept and accepted."""
        feed = self._feed
        while self._next > feed.tail and count:
            self._next -= 1
            count -= self._accepts is None or self._accepts(feed.namespace_at(self._next))
        self.seq = feed.at(self._next).seq - 1 if self._next < feed.head else feed.seq

    def _is_accepted(self, event: Event) -> bool:
        return self._accepts is None or self._accepts(event.namespace)

    def _fall_out(self, reason: str) -> None:
        feed = self._feed
        feed.resyncs[reason] += 1
        self._next, self.seq = feed.head, feed.seq
        self._resync = Resync(reason, feed.seq)

    def take(self) -> tuple[Resync | None, list[Event]]:
        """What there is: perhaps word that events were missed, then those that follow; some at a time."""
        feed = self._feed
        if self._next < feed.tail:
            self._fall_out(feed.behind(self.seq))
        resync, self._resync = self._resync, None
        stop = min(feed.head, self._next + LOOKED_AT_ONCE)
        events = [feed.at(number) for number in range(self._next, stop)]
        self._next = stop
        self.seq = max(self.seq, events[-1].seq if stop < feed.head else feed.seq)
        return resync, events if self._accepts is None else [e for e in events if self._is_accepted(e)]

    @property
    def position(self) -> Position:
        """Where a later subscription goes on after what was taken."""
        return self._feed.position(self.seq)

    @property
    def waiting(self) -> bool:
        """True if there is nothing to take now."""
        return self._next == self._feed.head and self._resync is None

    @property
    def ended(self) -> bool:
        return self._feed.closed and self.waiting

    async def wait(self, timeout_seconds: float) -> None:
        """Return when there may be something to take, when the feed closes, or after the time."""
        if self._resync is None:
            await self._feed.wait(self._next, timeout_seconds)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._feed.subscribers -= 1
