"""How a request to a value ends when its handler raises: the one translation of errors to answers for all its doors."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from api.counters import CLIENT_GONE
from api.exchange import BodyTimeout, ClientGone, Exchange
from api.headers import encode
from api.problems import Problem, problem_of, problem_of_status
from storage.errors import RawblockdError

log = logging.getLogger("rawblockd.http")

FAILURES = (RawblockdError, BodyTimeout, ClientGone)
"""What the handlers of values raise."""


def answer_failure(
    exchange: Exchange, error: RawblockdError | BodyTimeout | ClientGone, retry_after_seconds: int
) -> int:
    """End a request whose handler raised; the status it counts with."""
    if isinstance(error, ClientGone):
        return CLIENT_GONE
    if isinstance(error, BodyTimeout):
        return refuse(exchange, problem_of_status(408), linger=False)
    if exchange.answered:
        return _cut_short(error)
    return refuse(exchange, problem_of(error, retry_after_seconds))


def refuse(exchange: Exchange, problem: Problem, *, linger: bool = True) -> int:
    """Answer with a problem, and end the connection if a body is left unread; the status."""
    body = problem.body()
    lines = encode(problem.all_headers())
    if exchange.body_unread:
        # A client that waits for 100 Continue sends nothing now that it has its answer.
        waits = exchange.fields.get(b"expect", b"").lower() == b"100-continue"
        exchange.refuse(problem.status, lines, body, linger=linger and not waits)
    else:
        exchange.answer(problem.status, lines, body)
    return problem.status


def refuse_method(exchange: Exchange, methods: Iterable[str]) -> int:
    """405; ``methods`` are those that the path takes."""
    problem = problem_of_status(405)
    problem.headers.append((b"allow", ", ".join(methods).encode("ascii")))
    return refuse(exchange, problem)


def _cut_short(error: RawblockdError) -> int:
    """End an answer whose head is out but whose payload fails. It counts with the status of its error.

    The connection of an answer that was not completed is closed, so the client sees fewer bytes than Content-Length
    and never a whole, wrong value (B1).
    """
    log.warning("an answer was cut short: %s", error.code)
    return error.http_status
