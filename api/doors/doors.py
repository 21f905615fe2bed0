"""The open doors as one ASGI application."""

from __future__ import annotations

import time

from starlette.types import Receive, Scope, Send

from api.access.permissions import Permission, Reach, Room
from api.access.roles import Role
from api.admission import credentials_of
from api.counters import OTHER, HttpCounters
from api.doors.bazel import BAZEL
from api.doors.ccache import CCACHE
from api.doors.door import READS, Door, Route
from api.doors.gradle import GRADLE
from api.doors.sccache import SCCACHE
from api.engine_face import EngineFace
from api.headers import refuse_upgrade_with_body
from api.problems import problem_of_status
from api.refusals import FAILURES, answer_failure, refuse
from api.serving import refuse_unless_serving
from api.settings import ApiSettings
from api.value_request import ValueRequest, value_request
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose path is an open door's."""
        started = time.perf_counter()
        request = value_request(self._engine, self._settings, scope, receive, send)
        name, slash, rest = scope["raw_path"][1:].partition(b"/")
        door, request.namespace = self._open[name]
        path = slash + rest
        route = door.find(path)
        code = 500
        try:
            if route is None:
                code = await refuse(request, problem_of_status(404))
            else:
                code = await self._answer(request, scope, door, route, path)
        finally:
            template = OTHER if route is None else route.template
            self._counters.record(template, scope["method"], code, time.perf_counter() - started)

    async def _answer(self, request: ValueRequest, scope: Scope, door: Door, route: Route, path: bytes) -> int:
        method = scope["method"]
        answer = route.answers.get(method)
        if answer is None:
            problem = problem_of_status(405)
            problem.headers.append((b"allow", ", ".join(route.answers).encode("ascii")))
            return await refuse(request, problem)
        try:
            (_READ if method in READS else _WRITE).demand(credentials_of(scope), request.namespace)
            refuse_upgrade_with_body(request.fields)
            refuse_unless_serving(self._engine)
            request.key = route.read_key(path)
            return await answer(request)
        except FAILURES as error:
            if isinstance(error, RawblockdError) and not request.answered:
                error = door.soften(method, error)
            return await answer_failure(request, error)
