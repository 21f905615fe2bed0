"""The value routes as one plain ASGI application: no framework routing, no validation models, no middleware.

At 4 KiB the HTTP layer is the bound of the daemon, so this path does the least that HTTP asks for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from api.answers import send_problem, send_problem_unread
from api.counters import CLIENT_GONE, OTHER, HttpCounters
from api.engine_face import EngineFace
from api.headers import refuse_upgrade_with_body
from api.problems import Problem, problem_of, problem_of_status
from api.serving import refuse_unless_serving
from api.settings import ApiSettings
from api.value_paths import TEMPLATE, decode_key, decode_namespace, split_path
from api.value_request import BodyTimeout, ClientGone, ValueRequest, value_request
from api.values_delete import answer_delete
from api.values_get import answer_get, answer_head
from api.values_put import answer_put
from storage.errors import RawblockdError

log = logging.getLogger("rawblockd.http")

_ANSWERS: dict[str, Callable[[ValueRequest], Awaitable[int]]] = {
    "GET": answer_get,
    "HEAD": answer_head,
    "PUT": answer_put,
    "DELETE": answer_delete,
}
METHODS = tuple(_ANSWERS)
_ALLOW = (b"allow", ", ".join(METHODS).encode())


class Values:
    """Answers everything below ``/v1/kv/``."""

    def __init__(self, engine: EngineFace, settings: ApiSettings, counters: HttpCounters) -> None:
        self._engine = engine
        self._settings = settings
        self._counters = counters
        counters.declare(TEMPLATE, METHODS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request = value_request(self._engine, self._settings, scope, receive, send)
        parts = split_path(scope["raw_path"])
        code = 500
        try:
            if parts is None:
                code = await _refuse(request, problem_of_status(404))
            else:
                code = await self._answer(request, scope["method"], *parts)
        finally:
            route = OTHER if parts is None else TEMPLATE
            self._counters.record(route, scope["method"], code, time.perf_counter() - started)

    async def _answer(self, request: ValueRequest, method: str, namespace: bytes, key: bytes) -> int:
        answer = _ANSWERS.get(method)
        if answer is None:
            problem = problem_of_status(405)
            problem.headers.append(_ALLOW)
            return await _refuse(request, problem)
        try:
            refuse_upgrade_with_body(request.fields)
            refuse_unless_serving(self._engine)
            request.namespace = decode_namespace(namespace)
            request.key = decode_key(key)
            return await answer(request)
        except RawblockdError as error:
            if request.answered:
                return _cut_short(error)
            return await _refuse(request, problem_of(error, self._settings.retry_after_seconds))
        except BodyTimeout:
            return await _refuse(request, problem_of_status(408), linger=False)
        except ClientGone:
            return CLIENT_GONE


async def _refuse(request: ValueRequest, problem: Problem, *, linger: bool = True) -> int:
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
