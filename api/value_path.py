"""What is answered in front of the framework, and of ASGI: values, batches, build caches, exports, parts of imports."""

from __future__ import annotations

import time

from api.access.permissions import Room
from api.admission import Admission, serves
from api.counters import OTHER, HttpCounters
from api.doors.doors import Doors
from api.engine_face import EngineFace
from api.exchange import Exchange
from api.headers import encode
from api.problems import Problem, problem_of, problem_of_status
from api.refusals import refuse
from api.restore_streams import RestoreStreams
from api.settings import ApiSettings
from api.value_paths import PREFIX
from api.values import Values
from storage.errors import RequestRefused


class ValuePath:
    """Lets each request in and sends it to its handler. All in one place that knows no server."""

    def __init__(self, engine: EngineFace, settings: ApiSettings, counters: HttpCounters, admission: Admission) -> None:
        self._counters = counters
        self._admission = admission
        self._values = Values(engine, settings, counters, admission)
        self._doors = Doors(engine, settings, counters)
        self._streams = RestoreStreams(engine, settings, counters, admission)

    def leads_to(self, raw_path: bytes) -> bool:
        """True if the path is answered here."""
        return raw_path.startswith(PREFIX) or self._doors.lead_to(raw_path) or self._streams.lead_to(raw_path)

    def begin(self, exchange: Exchange) -> bool:
        """Answer a request whose path leads here; True if that is done already. For ``Exchange.step``."""
        started = time.perf_counter()
        try:
            credentials = self._admission.admit(exchange.method, exchange.fields, exchange.place)
        except RequestRefused as error:
            return self._refuse(exchange, problem_of(error, 0), started)
        raw_path = exchange.raw_path
        if raw_path.startswith(PREFIX) and serves(exchange.room, Room.VALUES):
            return self._values.begin(exchange, credentials, started)
        if self._streams.lead_to(raw_path):
            exchange.handle(self._streams.handle(exchange, credentials, started))
        elif not serves(exchange.room, Room.VALUES):
            return self._refuse(exchange, problem_of_status(404), started)
        else:
            exchange.handle(self._doors.handle(exchange, credentials, started))
        return False

    def end_in_mistake(self, exchange: Exchange) -> None:
        """Answer 500 if nothing is answered yet. The connection ends with it: nobody knows how much of a body was
        read."""
        if not exchange.answered:
            problem = problem_of_status(500)
            exchange.refuse(problem.status, encode(problem.all_headers()), problem.body(), linger=False)

    def _refuse(self, exchange: Exchange, problem: Problem, started: float) -> bool:
        refuse(exchange, problem)
        self._counters.record(OTHER, exchange.method, problem.status, time.perf_counter() - started)
        return True
