"""The value routes: no framework routing, no validation models, no middleware.

At 4 KiB the HTTP layer is the bound of the daemon, so this path does the least that HTTP asks for.
"""

from __future__ import annotations

import time

from api.access.credentials import Credentials
from api.admission import Admission
from api.counters import OTHER, HttpCounters
from api.engine_face import EngineFace
from api.exchange import Exchange
from api.headers import refuse_upgrade_with_body
from api.plain_values import PlainValues
from api.problems import problem_of_status
from api.refusals import FAILURES, answer_failure, refuse, refuse_method
from api.settings import ApiSettings
from api.value_request import ValueRequest, let_in
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

        self.begin = PlainValues(engine, settings, counters, admission, self._handle).begin
        """Answers a request, as it does."""

    async def _handle(self, exchange: Exchange, credentials: Credentials, started: float) -> None:
        route, namespace, key = self._routes.find(exchange.raw_path)
        code = 500
        try:
            if route is None:
                code = refuse(exchange, problem_of_status(404))
            else:
                request = ValueRequest(self._engine, self._settings, exchange, credentials)
                code = await self._answer(request, route, namespace, key)
        finally:
            template = OTHER if route is None else route.template
            self._counters.record(template, exchange.method, code, time.perf_counter() - started)

    async def _answer(self, request: ValueRequest, route: ValueRoute, namespace: bytes, key: bytes | None) -> int:
        exchange = request.exchange
        answer = route.handlers.get(exchange.method)
        if answer is None:
            return refuse_method(exchange, route.handlers)
        try:
            refuse_upgrade_with_body(exchange.fields)
            template = route.permission_template(request.query)
            request.namespace, request.key = let_in(
                self._engine, self._admission, request.credentials, template, exchange.method, namespace, key
            )
            return await answer(request)
        except FAILURES as error:
            return answer_failure(exchange, error, self._settings.retry_after_seconds)
