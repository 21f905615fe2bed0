"""Exports of snapshots and parts of imports as one plain ASGI application: both stream, with bounded memory."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from starlette.types import Receive, Scope, Send

from api.access.credentials import require
from api.access.roles import Role
from api.admission import Admission, credentials_of
from api.batch.memory import BatchMemory
from api.counters import HttpCounters
from api.engine_face import EngineFace
from api.headers import refuse_upgrade_with_body
from api.import_parts import answer_part
from api.limits import IMPORT_MEMORY_BYTES
from api.problems import problem_of_status
from api.refusals import FAILURES, answer_failure, refuse
from api.restore_openapi import EXPORT_TEMPLATE, PART_TEMPLATE
from api.serving import refuse_unless_serving
from api.settings import ApiSettings
from api.snapshot_export import answer_export, answer_export_head
from api.value_request import ValueRequest, value_request

_EXPORT_PATH = re.compile(rb"/v1/snapshots/([^/]+)/export")
_PART_PATH = re.compile(rb"/v1/imports/([^/]+)/parts/([^/]+)")

Answer = Callable[[ValueRequest, Scope, list[str]], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class _Route:
    template: str
    pattern: re.Pattern[bytes]
    answers: Mapping[str, Answer]


class RestoreStreams:
    def __init__(self, engine: EngineFace, settings: ApiSettings, counters: HttpCounters, admission: Admission) -> None:
        self._engine = engine
        self._settings = settings
        self._counters = counters
        self._admission = admission
        self._memory = BatchMemory(IMPORT_MEMORY_BYTES)
        self._routes = (
            _Route(EXPORT_TEMPLATE, _EXPORT_PATH, {"GET": self._export, "HEAD": self._export}),
            _Route(PART_TEMPLATE, _PART_PATH, {"PUT": self._part}),
        )
        for route in self._routes:
            counters.declare(route.template, route.answers)

    def lead_to(self, raw_path: bytes) -> bool:
        """True if the path is one of these routes."""
        return any(route.pattern.fullmatch(raw_path) for route in self._routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose path is one of these routes."""
        started = time.perf_counter()
        request = value_request(self._engine, self._settings, scope, receive, send)
        route, match = next((one, found) for one in self._routes if (found := one.pattern.fullmatch(scope["raw_path"])))
        names = [unquote_to_bytes(raw).decode("utf-8", "replace") for raw in match.groups()]
        code = 500
        try:
            code = await self._answer(request, scope, route, names)
        finally:
            self._counters.record(route.template, scope["method"], code, time.perf_counter() - started)

    async def _answer(self, request: ValueRequest, scope: Scope, route: _Route, names: list[str]) -> int:
        answer = route.answers.get(scope["method"])
        if answer is None:
            problem = problem_of_status(405)
            problem.headers.append((b"allow", ", ".join(route.answers).encode()))
            return await refuse(request, problem)
        try:
            refuse_upgrade_with_body(request.fields)
            self._admission.demand(scope, route.template)
            refuse_unless_serving(self._engine)
            return await answer(request, scope, names)
        except FAILURES as error:
            return await answer_failure(request, error)

    async def _export(self, request: ValueRequest, scope: Scope, names: list[str]) -> int:
        view = self._engine.snapshot(names[0])
        require(credentials_of(scope), Role.READER, view.namespace)
        return await (answer_export_head if scope["method"] == "HEAD" else answer_export)(request, view)

    async def _part(self, request: ValueRequest, scope: Scope, names: list[str]) -> int:
        import_id, part = names
        require(credentials_of(scope), Role.WRITER, self._engine.import_view(import_id).namespace)
        return await answer_part(request, import_id, part, self._memory)
