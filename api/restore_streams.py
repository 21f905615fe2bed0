"""Exports of snapshots and parts of imports: both stream, with bounded memory."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from api.access.credentials import Credentials, require
from api.access.roles import Role
from api.admission import Admission
from api.batch.memory import BatchMemory
from api.counters import HttpCounters
from api.engine_face import EngineFace
from api.exchange import Exchange
from api.headers import refuse_upgrade_with_body
from api.import_parts import answer_part
from api.limits import IMPORT_MEMORY_BYTES
from api.refusals import FAILURES, answer_failure, refuse_method
from api.restore_openapi import EXPORT_TEMPLATE, PART_TEMPLATE
from api.serving import refuse_unless_serving
from api.settings import ApiSettings
from api.snapshot_export import answer_export, answer_export_head
from api.value_request import ValueRequest

_EXPORT_PATH = re.compile(rb"/v1/snapshots/([^/]+)/export")
_PART_PATH = re.compile(rb"/v1/imports/([^/]+)/parts/([^/]+)")

Answer = Callable[[ValueRequest, list[str]], Awaitable[int]]


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

    async def handle(self, exchange: Exchange, credentials: Credentials, started: float) -> None:
        """Answer a request whose path is one of these routes."""
        path = exchange.raw_path
        route, match = next((one, found) for one in self._routes if (found := one.pattern.fullmatch(path)))
        names = [unquote_to_bytes(raw).decode("utf-8", "replace") for raw in match.groups()]
        code = 500
        try:
            code = await self._answer(exchange, credentials, route, names)
        finally:
            self._counters.record(route.template, exchange.method, code, time.perf_counter() - started)

    async def _answer(self, exchange: Exchange, credentials: Credentials, route: _Route, names: list[str]) -> int:
        answer = route.answers.get(exchange.method)
        if answer is None:
            return refuse_method(exchange, route.answers)
        try:
            refuse_upgrade_with_body(exchange.fields)
            self._admission.demand(credentials, route.template, exchange.method)
            refuse_unless_serving(self._engine)
            return await answer(ValueRequest(self._engine, self._settings, exchange, credentials), names)
        except FAILURES as error:
            return answer_failure(exchange, error, self._settings.retry_after_seconds)

    async def _export(self, request: ValueRequest, names: list[str]) -> int:
        view = self._engine.snapshot(names[0])
        require(request.credentials, Role.READER, view.namespace)
        return await (answer_export_head if request.exchange.method == "HEAD" else answer_export)(request, view)

    async def _part(self, request: ValueRequest, names: list[str]) -> int:
        import_id, part = names
        require(request.credentials, Role.WRITER, self._engine.import_view(import_id).namespace)
        return await answer_part(request, import_id, part, self._memory)
