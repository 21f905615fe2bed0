"""The value routes as one plain ASGI application: no framework routing, no validation models, no middleware.

At 4 KiB the HTTP layer is the bound of the daemon, so this path does the least that HTTP asks for.
"""

from __future__ import annotations

import time

from starlette.types import Receive, Scope, Send

from api.admission import Admission
from api.counters import OTHER, HttpCounters
from api.engine_face import EngineFace
from api.headers import refuse_upgrade_with_body
from api.problems import problem_of_status
from api.refusals import FAILURES, answer_failure, refuse
from api.serving import refuse_unless_serving
from api.settings import ApiSettings
from api.value_paths import decode_key, decode_namespace
from api.value_request import ValueRequest, value_request
from api.value_routes import ValueRoute, ValueRoutes


class Values:
    """Answers everything below ``/v1/kv/``."""

    def __init__(self, engine: EngineFace, settings: ApiSettings, counters: HttpCounters, admission: Admission) -> None:
        self._engine = engine
        self._settings = settings
        self._counters = counters
        self._admission = admission
        self._routes = ValueRoutes()
        for route in self._routes.all:
            counters.declare(route.template, route.handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        request = value_request(self._engine, self._settings, scope, receive, send)
        route, namespace, key = self._routes.find(scope["raw_path"])
        code = 500
        try:
            if route is None:
                code = await refuse(request, problem_of_status(404))
            else:
                code = await self._answer(request, scope, route, namespace, key)
        finally:
            template = OTHER if route is None else route.template
            self._counters.record(template, scope["method"], code, time.perf_counter() - started)

    async def _answer(
        self, request: ValueRequest, scope: Scope, route: ValueRoute, namespace: bytes, key: bytes | None
    ) -> int:
        answer = route.handlers.get(scope["method"])
        if answer is None:
            problem = problem_of_status(405)
            problem.headers.append((b"allow", route.allow))
            return await refuse(request, problem)
        try:
            refuse_upgrade_with_body(request.fields)
            request.namespace = decode_namespace(namespace)
            self._admission.demand(scope, route.permission_template(request.query), request.namespace)
            refuse_unless_serving(self._engine)
            if key is not None:
                request.key = decode_key(key)
            return await answer(request)
        except FAILURES as error:
            return await answer_failure(request, error)
