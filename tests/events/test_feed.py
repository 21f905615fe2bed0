"""The ring: bounded, in order; readers hold a place in it and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from storage.errors import Draining, Starting, TooManySubscribers
from storage.events import EVENT_BYTES, SUBSCRIBERS_MAX, Event, EventFeed, History, Position

DEVICE = "00112233"
CAPACITY = 16


def feed_of(
    memory_bytes: int = CAPACITY * EVENT_BYTES, *, next_seq: int = 1, history: History | None = None
) -> EventFeed:
    feed = EventFeed(memory_bytes)
    feed.begin(history or History(floor=next_seq - 1), device=DEVICE, start=3, next_seq=next_seq)
    feed.open()
    return feed


def fill(feed: EventFeed, seqs: range, namespace: str = "n", key: bytes = b"") -> None:
    for seq in seqs:
        feed.append(Event(seq, "stored", namespace, seq, key=key))


def seqs_of(feed: EventFeed, since: Position) -> tuple[str, list[int]]:
    """Why there was a resync, and the seqs that follow."""
    subscription = feed.subscribe(since)
    try:
        resync, events = subscription.take()
        return resync.reason if resync else "", [event.seq for event in events]
    finally:
        subscription.close()


def test_a_reader_goes_on_where_it_left_off() -> None:
    feed = feed_of()
    fill(feed, range(1, 11))
    for seq in range(11):
        assert seqs_of(feed, Position(seq)) == ("", list(range(seq + 1, 11)))
        assert seqs_of(feed, Position(seq, 3, DEVICE)) == ("", list(range(seq + 1, 11)))


def test_l1_the_ring_is_bounded_in_number() -> None:
    feed = feed_of()
    fill(feed, range(1, 101))
    assert [event.seq for event in feed.last(1000)] == list(range(85, 101))
    assert seqs_of(feed, Position(84)) == ("", list(range(85, 101)))
    assert seqs_of(feed, Position(83)) == ("too_far_behind", [])


def test_l1_the_ring_is_bounded_in_bytes() -> None:
    feed = feed_of()
    fill(feed, range(1, 101), key=bytes(EVENT_BYTES))
    assert len(feed.last(1000)) == CAPACITY // 2
    fill(feed, range(101, 201))
    assert len(feed.last(1000)) == CAPACITY


def test_a_slow_reader_resyncs_and_goes_on() -> None:
    feed = feed_of()
    subscription = feed.subscribe()
    fill(feed, range(1, 101))
    resync, events = subscription.take()
    assert resync is not None
    assert (resync.reason, resync.seq) == ("too_far_behind", 100)
    assert events == []
    fill(feed, range(101, 103))
    resync, events = subscription.take()
    assert resync is None
    assert [event.seq for event in events] == [101, 102]
    assert feed.resyncs == {"too_far_behind": 1, "ahead": 0, "unknown_loss": 0, "other_device": 0}
    subscription.close()


@pytest.mark.parametrize(
    ("since", "reason"),
    [
        ("50-3-00112233", ""),
        ("51-3-00112233", "ahead"),
        ("51", "ahead"),
        ("10-4-00112233", "ahead"),
        ("50-3-ffffffff", "other_device"),
        ("29-2-00112233", ""),
        ("30-2-00112233", "ahead"),
        ("35-2-00112233", "ahead"),
        ("19-1-00112233", "too_far_behind"),
        ("20-1-00112233", "ahead"),
        ("30", ""),
        ("28", "too_far_behind"),
        ("28-2-00112233", "too_far_behind"),
    ],
)
def test_a_position_of_an_earlier_start(since: str, reason: str) -> None:
    """Start 2 wrote seqs from 20 on, start 3 from 30 on: what start 2 wrote at 30 and after was lost."""
    history = History(floor=29, starts=[(1, 0), (2, 20)])
    feed = EventFeed(1 << 20)
    feed.begin(history, device=DEVICE, start=3, next_seq=30)
    fill(feed, range(30, 51))
    feed.open()
    assert feed.why_not(Position.parse(since)) == reason


def test_a_start_that_the_journal_does_not_reach_is_too_far_behind() -> None:
    feed = feed_of(history=History(floor=10, starts=[(2, 0)]), next_seq=20)
    assert feed.why_not(Position(15, 1, DEVICE)) == "too_far_behind"


def test_after_an_unknown_loss_everybody_resyncs() -> None:
    feed = feed_of()
    fill(feed, range(1, 11))
    subscription = feed.subscribe(Position(5))
    feed.cut(12, "unknown_loss")
    fill(feed, range(13, 15))
    assert feed.why_not(Position(11)) == "unknown_loss"
    assert feed.why_not(Position(12)) == ""
    resync, events = subscription.take()
    assert resync is not None
    assert (resync.reason, events) == ("unknown_loss", [])
    subscription.close()


@pytest.mark.parametrize(
    "text", ["", "-1", "1-", "1-2", "1-0-00112233", "1-2-0011223", "1-2-0011223g", "١", "1 ", "9" * 20]
)
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(ValueError, match="no position"):
        Position.parse(text)


def test_a_position_reads_as_it_is_written() -> None:
    for position in (Position(0), Position(7), Position(7, 3, DEVICE)):
        assert Position.parse(str(position)) == position


def test_last_events_of_a_namespace() -> None:
    feed = feed_of()
    for seq in range(1, 11):
        feed.append(Event(seq, "stored", "odd" if seq % 2 else "even", seq))
    subscription = feed.subscribe(last=3, accepts=lambda name: name == "odd")
    _, events = subscription.take()
    assert [event.seq for event in events] == [5, 7, 9]
    assert subscription.position.seq == 10, "what was passed over is not missed"
    subscription.close()


def test_l1_subscribers_are_bounded() -> None:
    feed = feed_of()
    subscriptions = [feed.subscribe() for _ in range(SUBSCRIBERS_MAX)]
    with pytest.raises(TooManySubscribers):
        feed.subscribe()
    subscriptions[0].close()
    subscriptions[0].close()
    feed.subscribe().close()
    for subscription in subscriptions:
        subscription.close()
    assert feed.subscribers == 0


def test_nobody_is_let_in_before_the_start_and_after_the_end() -> None:
    feed = EventFeed(1 << 20)
    with pytest.raises(Starting):
        feed.subscribe()
    feed.begin(History(), device=DEVICE, start=1, next_seq=1)
    feed.open()
    subscription = feed.subscribe()
    feed.append(Event(1, "stored", "n"))
    feed.close()
    with pytest.raises(Draining):
        feed.subscribe()
    had_ended = subscription.ended
    assert not had_ended, "what is there is still told"
    _, events = subscription.take()
    assert len(events) == 1
    assert subscription.ended
    subscription.close()


async def test_waiting_ends_with_an_event_and_with_the_feed() -> None:
    feed = feed_of()
    subscription = feed.subscribe()
    waiting = [asyncio.create_task(subscription.wait(60)) for _ in range(3)]
    await asyncio.sleep(0)
    feed.append(Event(1, "stored", "n"))
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    subscription.take()
    waiting = [asyncio.create_task(subscription.wait(60))]
    await asyncio.sleep(0)
    feed.close()
    await asyncio.wait_for(waiting[0], 10)
    assert subscription.ended
    subscription.close()
