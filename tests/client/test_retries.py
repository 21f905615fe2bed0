"""What is tried again, what isn't, and that no wait goes beyond the deadline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rawblockd_client import NO_RETRIES, AnswerInvalid, ConnectionFailed, DeadlineExceeded, Problem, Retries
from rawblockd_client.problems import Busy, FlushFailed, Full, RateLimited
from rawblockd_client.retries import Attempts
from tests.client.places import opened
from tests.client.scripted_server import CLOSE, ScriptedServer, answer, problem

QUICK = Retries(deadline_seconds=20.0, pause_seconds=0.001, pause_max_seconds=0.01)
VALUE = answer(200, b"value", ETag='"1"')
STORED = answer(204, ETag='"1"', Rawblockd_Durability="journal")
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@KINDS
@pytest.mark.parametrize(
    "refusal", [problem(503, "busy"), problem(429, "rate_limited"), problem(503, "new", Retry_After="0")]
)
async def test_a_refusal_for_now_is_asked_again(kind: str, refusal: bytes) -> None:
    with ScriptedServer(refusal, refusal, VALUE) as server:
        async with opened(kind, server.url, retries=QUICK) as client:
            assert await client.get("n", "key") == b"value"
        assert len(server.requests) == 3


@KINDS
async def test_a_head_has_no_problem_to_read(kind: str) -> None:
    """The status is all that there is."""
    busy = b"HTTP/1.1 503 X\r\nContent-Length: 99\r\nContent-Type: application/problem+json\r\n\r\n"
    found = b'HTTP/1.1 200 X\r\nContent-Length: 99\r\nETag: "1"\r\n\r\n'
    no_lease = b"HTTP/1.1 404 X\r\nContent-Length: 99\r\nContent-Type: application/problem+json\r\n\r\n"
    with ScriptedServer(busy, found, no_lease) as server:
        async with opened(kind, server.url, retries=QUICK) as client:
            assert (await client.head("n", "key")).size_bytes == 99
            with pytest.raises(Problem) as refused:
                await client.head("n", "key", lease="gone")
        assert refused.value.status == 404


@KINDS
async def test_a_refusal_for_good_is_raised_at_once(kind: str) -> None:
    with ScriptedServer(problem(507, "full"), VALUE) as server:
        async with opened(kind, server.url, retries=QUICK) as client:
            with pytest.raises(Full) as full:
                await client.put("n", "key", b"")
        assert (full.value.detail, len(server.requests)) == ("why", 1)


@KINDS
async def test_a_wait_beyond_the_deadline_is_not_begun(kind: str) -> None:
    with ScriptedServer(problem(429, "rate_limited", Retry_After="3600"), VALUE) as server:
        async with opened(kind, server.url, retries=QUICK) as client:
            with pytest.raises(RateLimited) as limited:
                await client.get("n", "key")
        assert (limited.value.retry_after_seconds, len(server.requests)) == (3600.0, 1)


@KINDS
@pytest.mark.parametrize("broken", [CLOSE, b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\nhalf"])
async def test_a_broken_connection_is_made_again_for_what_may_happen_twice(kind: str, broken: bytes) -> None:
    with ScriptedServer(broken, VALUE, keep_open=False) as server:
        async with opened(kind, server.url, retries=QUICK) as client:
            assert await client.get("n", "key") == b"value"
        assert server.connections == 2


@KINDS
async def test_a_broken_connection_leaves_a_put_with_a_condition_open(kind: str) -> None:
    """It may have taken effect: a second one would fail by the first, and say that somebody else was there."""
    with ScriptedServer(CLOSE, STORED) as server:
        async with opened(kind, server.url, retries=QUICK) as client:
            with pytest.raises(ConnectionFailed):
                await client.put("n", "key", b"x", if_match='"1"')
            assert len(server.requests) == 1
            assert (await client.put("n", "key", b"x")).etag == '"1"', "without a condition it may be made again"


@KINDS
async def test_a_failed_flush_is_in_effect_so_a_condition_is_not_tried_again(kind: str) -> None:
    with ScriptedServer(problem(503, "flush_failed"), STORED, problem(503, "flush_failed"), STORED) as server:
        async with opened(kind, server.url, retries=QUICK) as client:
            with pytest.raises(FlushFailed):
                await client.put("n", "key", b"x", if_absent=True)
            await client.put("n", "key", b"x")
            await client.put("n", "key", b"x")
        assert len(server.requests) == 4


@KINDS
async def test_an_idle_connection_that_was_closed_is_not_used(kind: str) -> None:
    with ScriptedServer(STORED, STORED, keep_open=False) as server:
        async with opened(kind, server.url, retries=NO_RETRIES) as client:
            await client.put("n", "key", b"x", if_match='"1"')
            while not server.closed:
                await asyncio.sleep(0.01)
            await client.put("n", "key", b"x", if_match='"1"')
        assert server.connections == 2


@KINDS
async def test_a_connection_is_used_again(kind: str) -> None:
    with ScriptedServer(STORED, VALUE, problem(404, "not_found", Cache_Status="rawblockd; fwd=miss")) as server:
        async with opened(kind, server.url, retries=NO_RETRIES) as client:
            await client.put("n", "key", b"x")
            await client.get("n", "key")
            assert await client.get("n", "none") is None
        assert server.connections == 1


@KINDS
async def test_a_silent_daemon_is_given_up(kind: str) -> None:
    with ScriptedServer() as server:
        server._talk = lambda connection: None  # type: ignore[method-assign]
        async with opened(kind, server.url, retries=NO_RETRIES, timeout=0.1) as client:
            with pytest.raises(DeadlineExceeded):
                await client.get("n", "key")


@KINDS
async def test_nobody_listening_is_said(kind: str) -> None:
    with ScriptedServer() as server:
        url = server.url
    async with opened(kind, url, retries=NO_RETRIES) as client:
        with pytest.raises(ConnectionFailed):
            await client.get("n", "key")


@KINDS
@pytest.mark.parametrize(
    "odd",
    [
        answer(200, b"\x81\xa6status\xcc\xc8", Content_Type="application/msgpack"),
        answer(200, b"\xc4\x01x", Content_Type="application/msgpack"),
        answer(200, b"\x83\xa3end\xc3\xa7results\x01\xa4hits\x01", Content_Type="application/msgpack"),
        answer(200, b"\x82\xa6status\xcc\xc8\xa4size\x05\xc4\x01x\x81\xa3end\xc3", Content_Type="application/msgpack"),
    ],
)
async def test_an_answer_that_is_none_is_no_value(kind: str, odd: bytes) -> None:
    with ScriptedServer(odd) as server:
        async with opened(kind, server.url, retries=NO_RETRIES) as client:
            with pytest.raises(AnswerInvalid):
                await client.mget("n", ["key"])


def test_pauses_are_drawn_between_nothing_and_a_growing_bound() -> None:
    attempts = Attempts(Retries(1e6, pause_seconds=1.0, pause_max_seconds=64.0), repeatable=True)
    pauses = [attempts.pause_after(Busy("busy", 503)) for _ in range(12)]
    assert all(pause <= bound for pause, bound in zip(pauses, [2.0**n for n in range(6)] + [64.0] * 6, strict=True))
    assert len(set(pauses)) == 12
    waits = Attempts(Retries(1e6), repeatable=True).pause_after(Busy("busy", 503, retry_after_seconds=9.0))
    assert 9.0 <= waits <= 9.05


def test_the_last_error_is_raised_when_time_is_up() -> None:
    error: Any = Problem("busy", 503)
    with pytest.raises(Problem) as raised:
        Attempts(NO_RETRIES, repeatable=True).pause_after(error)
    assert raised.value is error
