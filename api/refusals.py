"""How a request to a value ends when its handler raises: the one translation of errors to answers for all its doors."""

from __future__ import annotations

import logging

from api.answers import send_problem, send_problem_unread
from api.counters import CLIENT_GONE
from api.problems import Problem, problem_of, problem_of_status
from api.value_request import BodyTimeout, ClientGone, ValueRequest
from storage.errors import RawblockdError

log = logging.getLogger("rawblockd.http")

FAILURES = (RawblockdError, BodyTimeout, ClientGone)
"""What the handlers of values raise."""


async def answer_failure(request: ValueRequest, error: RawblockdError | BodyTimeout | ClientGone) -> int:
    """End a request whose handler raised; the status it counts with."""
    if isinstance(error, ClientGone):
        return CLIENT_GONE
    if isinstance(error, BodyTimeout):
        return await refuse(request, problem_of_status(408), linger=False)
    if request.answered:
        return _cut_short(error)
    return await refuse(request, problem_of(error, request.settings.retry_after_seconds))


async def refuse(request: ValueRequest, problem: Problem, *, linger: bool = True) -> int:
    """Answer with a problem, and end the connection if a body is left unread."""
    request.answered = True
    if request.body_unread:
        # A client that waits for 100 Continue sends nothing now that it has its answer.
        linger = linger and not request.awaits_continue
        await send_problem_unread(request.receive, request.send, problem, linger=linger)
    else:
        await send_problem(request.send, problem)
    return problem.status


def _cut_short(error: RawblockdError) -> int:
    """End an answer whose head is out but whose payload fails. It counts with the status of its error.

    The server closes the connection of an answer that was not completed, so the client sees fewer bytes than
    Content-Length and never a whole, wrong value (B1).
    """
    log.warning("an answer was cut short: %s", error.code)
    return error.http_status
