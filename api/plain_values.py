"""GET of a whole value and PUT, where nothing has to be waited for but the device: ordinary calls, no coroutine.

They are most of what a cache is asked. What takes more than one step (no memory at once, a record that failed, a body
still on its way, conditions) is handled as every other request, from where it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from api.access.credentials import Credentials
from api.admission import Admission
from api.counters import HttpCounters
from api.engine_face import EngineFace, EntryReader, ValuePut
from api.exchange import BodyTimeout, ClientGone, Exchange
from api.headers import refuse_upgrade_with_body
from api.refusals import FAILURES, answer_failure
from api.settings import ApiSettings
from api.value_paths import TEMPLATE, split_path
from api.value_request import ValueRequest, let_in
from api.values_get import UNPLAIN, answer_whole
from api.values_put import PutHead, answer_stored, finish_put, read_put, target_of
from storage.entries import PutResult
from storage.errors import RawblockdError

Handler = Callable[[Exchange, Credentials, float], Coroutine[Any, Any, None]]


class PlainValues:
    """``handler`` answers what isn't plain, or turns out not to be."""

    def __init__(
        self,
        engine: EngineFace,
        settings: ApiSettings,
        counters: HttpCounters,
        admission: Admission,
        handler: Handler,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._counters = counters
        self._admission = admission
        self._handler = handler

    def begin(self, exchange: Exchange, credentials: Credentials, started: float) -> bool:
        """Answer a request below ``/v1/kv/``; True if that is done already. For ``Exchange.step``."""
        method = exchange.method
        begin = None
        if method == "GET":
            if not exchange.query and UNPLAIN.isdisjoint(exchange.fields):
                begin = self._begin_read
        elif method == "PUT":
            begin = self._begin_put
        path = None if begin is None else split_path(exchange.raw_path)
        if begin is None or path is None:
            return self._hand_on(exchange, credentials, started)
        ended = None
        try:
            ended = begin(exchange, credentials, started, *path)
        except FAILURES as error:
            ended = self._end(exchange, self._answer_failure(exchange, error), started)
        finally:
            if ended is None:  # a mistake of the daemon: whoever called answers it
                self._end(exchange, 500, started)
        return ended

    # -- a read -------------------------------------------------------------------------------------------------------

    def _begin_read(
        self, exchange: Exchange, credentials: Credentials, started: float, raw_namespace: bytes, raw_key: bytes
    ) -> bool:
        namespace, key = let_in(self._engine, self._admission, credentials, TEMPLATE, "GET", raw_namespace, raw_key)
        if self._engine.begin_read(
            namespace, key, lambda reader: exchange.step(self._end_read, exchange, credentials, started, reader)
        ):
            return False
        return self._hand_on(exchange, credentials, started)

    def _end_read(
        self, exchange: Exchange, credentials: Credentials, started: float, reader: EntryReader | None
    ) -> bool:
        if reader is None:
            return self._hand_on(exchange, credentials, started)
        code = 500
        try:
            answer_whole(exchange, reader)
            code = 200
        finally:
            reader.close()
            self._end(exchange, code, started)
        return True

    # -- a put --------------------------------------------------------------------------------------------------------

    def _begin_put(
        self, exchange: Exchange, credentials: Credentials, started: float, raw_namespace: bytes, raw_key: bytes
    ) -> bool:
        refuse_upgrade_with_body(exchange.fields)
        request = ValueRequest(self._engine, self._settings, exchange, credentials)
        request.namespace, key = let_in(
            self._engine, self._admission, credentials, TEMPLATE, "PUT", raw_namespace, raw_key
        )
        head = read_put(request)
        put = self._engine.begin_put_now(request.namespace, key, head.payload_bytes, **head.options)
        if put is None:
            return self._hand_on(exchange, credentials, started)
        begun = False
        try:
            complete = exchange.take_arrived(target_of(put, head.check))
            if complete:
                if head.check is not None:
                    head.check.verify()
                put.commit_soon(lambda outcome: exchange.step(self._end_put, exchange, started, outcome))
            begun = True
        finally:
            if not begun:  # another digest, or too much in flight
                put.abort()
        if not complete:
            exchange.handle(self._finish_put(exchange, put, head, started))
        return False

    def _end_put(self, exchange: Exchange, started: float, outcome: PutResult | RawblockdError) -> bool:
        code = 500
        try:
            if isinstance(outcome, RawblockdError):
                code = self._answer_failure(exchange, outcome)
            else:
                code = answer_stored(exchange, outcome)
        finally:
            self._end(exchange, code, started)
        return True

    async def _finish_put(self, exchange: Exchange, put: ValuePut, head: PutHead, started: float) -> None:
        code = 500
        try:
            code = await finish_put(exchange, put, head.check)
        except FAILURES as error:
            code = self._answer_failure(exchange, error)
        finally:
            self._end(exchange, code, started)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _hand_on(self, exchange: Exchange, credentials: Credentials, started: float) -> bool:
        exchange.handle(self._handler(exchange, credentials, started))
        return False

    def _answer_failure(self, exchange: Exchange, error: RawblockdError | BodyTimeout | ClientGone) -> int:
        return answer_failure(exchange, error, self._settings.retry_after_seconds)

    def _end(self, exchange: Exchange, code: int, started: float) -> bool:
        self._counters.record(TEMPLATE, exchange.method, code, time.perf_counter() - started)
        return True
