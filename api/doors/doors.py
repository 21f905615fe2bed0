"""The open doors: all requests below their paths."""

from __future__ import annotations

import time

from api.access.credentials import Credentials
from api.access.permissions import Permission, Reach, Room
from api.access.roles import Role
from api.counters import OTHER, HttpCounters
from api.doors.bazel import BAZEL
from api.doors.ccache import CCACHE
from api.doors.door import READS, Door, Route
from api.doors.gradle import GRADLE
from api.doors.sccache import SCCACHE
from api.engine_face import EngineFace
from api.exchange import Exchange
from api.headers import refuse_upgrade_with_body
from api.problems import problem_of_status
from api.refusals import FAILURES, answer_failure, refuse, refuse_method
from api.serving import refuse_unless_serving
from api.settings import ApiSettings
from api.value_request import ValueRequest
from storage.errors import RawblockdError

DOORS = {door.name: door for door in (BAZEL, CCACHE, GRADLE, SCCACHE)}

_READ = Permission(Role.READER, Reach.NAMESPACE, Room.VALUES, offers_basic=True)
_WRITE = Permission(Role.WRITER, Reach.NAMESPACE, Room.VALUES, offers_basic=True)


class Doors:
    """Answers what lies below the paths of the open doors."""

    def __init__(self, engine: EngineFace, settings: ApiSettings, counters: HttpCounters) -> None:
        self._engine = engine
        self._settings = settings
        self._counters = counters
        self._open = {
            choice.name.value.encode("ascii"): (DOORS[choice.name], choice.namespace) for choice in settings.doors
        }
        for door, _ in self._open.values():
            for route in door.routes:
                counters.declare(route.template, route.answers)

    def lead_to(self, raw_path: bytes) -> bool:
        """True if the path is an open door's."""
        return raw_path[1:].partition(b"/")[0] in self._open

    async def handle(self, exchange: Exchange, credentials: Credentials, started: float) -> None:
        """Answer a request whose path is an open door's."""
        name, slash, rest = exchange.raw_path[1:].partition(b"/")
        door, namespace = self._open[name]
        path = slash + rest
        route = door.find(path)
        code = 500
        try:
            if route is None:
                code = refuse(exchange, problem_of_status(404))
            else:
                request = ValueRequest(self._engine, self._settings, exchange, credentials)
                request.namespace = namespace
                code = await self._answer(request, door, route, path)
        finally:
            template = OTHER if route is None else route.template
            self._counters.record(template, exchange.method, code, time.perf_counter() - started)

    async def _answer(self, request: ValueRequest, door: Door, route: Route, path: bytes) -> int:
        exchange = request.exchange
        answer = route.answers.get(exchange.method)
        if answer is None:
            return refuse_method(exchange, route.answers)
        try:
            (_READ if exchange.method in READS else _WRITE).demand(request.credentials, request.namespace)
            refuse_upgrade_with_body(exchange.fields)
            refuse_unless_serving(self._engine)
            request.key = route.read_key(path)
            return await answer(request)
        except FAILURES as error:
            if isinstance(error, RawblockdError) and not exchange.answered:
                error = door.soften(exchange.method, error)
            return answer_failure(exchange, error, self._settings.retry_after_seconds)
