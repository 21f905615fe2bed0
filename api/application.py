"""The application: values in front of ASGI (``value_path``), everything else on FastAPI."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import Message, Receive, Scope, Send

from api.access.gate import Gate
from api.access.permissions import Room
from api.admission import ROOM, TEMPLATE, Admission, FrameworkRoutes, fields_of, send_refusal
from api.answers import send_problem_unread
from api.control import control_router
from api.counters import OTHER, HttpCounters
from api.engine_face import EngineFace
from api.events import ENDLESS, HEAD_ONLY, events_router
from api.framework_problems import add_handlers, on_mistake
from api.headers import refuse_upgrade_with_body
from api.health import RenderMetrics, health_router
from api.imports import imports_router
from api.leases import leases_router
from api.namespaces import namespaces_router
from api.openapi import openapi_document
from api.operations import Operations
from api.operator_page.observer import Observer
from api.operator_page.routes import operator_router
from api.problems import Problem, problem_of
from api.reference_page import reference_router
from api.settings import ApiSettings
from api.snapshots import snapshots_router
from api.value_path import ValuePath
from api.value_paths import PREFIX
from storage.errors import ParameterInvalid, RequestRefused

__all__ = ["ApiSettings", "Application", "HttpCounters", "create_app"]


class Application:
    """As ASGI it lets each request in, sends it to the framework and counts what that answers.

    A server asks ``value_path`` first, and calls only for what doesn't lead there.
    """

    def __init__(
        self,
        value_path: ValuePath,
        framework: FastAPI,
        counters: HttpCounters,
        observer: Observer,
        admission: Admission,
    ) -> None:
        self.counters = counters
        self.observer = observer
        """Its ``run`` is a task for the process to start: without it the page has no charts."""
        self.value_path = value_path
        self._framework = framework
        self._admission = admission
        self._routes = FrameworkRoutes(admission, PREFIX.decode())
        self._guarded = ServerErrorMiddleware(self._dispatch, handler=on_mistake)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._framework(scope, receive, send)
            return
        try:
            self._admission.admit_scope(scope)
        except RequestRefused as error:
            await self._refuse(scope, receive, send, problem_of(error, 0))
        else:
            await self._count_framework(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
        started = time.perf_counter()
        await send_refusal(receive, send, fields_of(scope), problem)
        self.counters.record(OTHER, scope["method"], problem.status, time.perf_counter() - started)

    async def _count_framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        ended = 0.0
        code = 500

        async def note_status(message: Message) -> None:
            nonlocal code, ended
            if message["type"] == "http.response.start":
                code = message["status"]
                if scope.get(ENDLESS):
                    ended = time.perf_counter()  # how long somebody follows the events is no duration of an answer
            await send(message)

        method = scope["method"]
        if method == "HEAD":
            # Routes are declared for GET alone; the server keeps the body of an answer to HEAD to itself.
            scope = dict(scope, method="GET")
            scope[HEAD_ONLY] = True
        try:
            refuse_upgrade_with_body(fields_of(scope))
            refusal = self._routes.refusal(scope)
            if refusal is None:
                await self._framework(scope, receive, note_status)
            else:
                await send_refusal(receive, note_status, fields_of(scope), refusal)
        except ParameterInvalid as error:
            await send_problem_unread(receive, note_status, problem_of(error, 0), linger=False)
        finally:
            route = getattr(scope.get("route"), "path", None) or scope.get(TEMPLATE) or OTHER
            self.counters.record(route, method, code, (ended or time.perf_counter()) - started)


class ListenerApplication:
    """The application as one listener of several serves it: the routes of its ``room``."""

    def __init__(self, application: Application, room: Room) -> None:
        self._application = application
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROOM] = self._room
        await self._application(scope, receive, send)


def create_app(
    engine: EngineFace,
    settings: ApiSettings,
    render_metrics: RenderMetrics,
    counters: HttpCounters | None = None,
    admission: Admission | None = None,
) -> Application:
    """The application of one engine, which need not be ready yet: until it is, values are answered 503.

    ``render_metrics`` gets the Accept field of a scrape. ``counters`` are those to fill, else new ones; either way
    they are the application's ``counters``. Without ``admission`` whoever reaches it may do everything.
    """
    admission = Admission(Gate()) if admission is None else admission
    counters = HttpCounters() if counters is None else counters
    framework = FastAPI(title="rawblockd", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    observer = Observer(engine, counters)
    operations = Operations(engine, observer.log)
    document: dict[str, Any] = {}

    def whole_document() -> dict[str, Any]:
        if not document:
            document.update(openapi_document(framework, settings.doors))
        return document

    framework.include_router(control_router(engine, operations))
    framework.include_router(health_router(engine, render_metrics, settings.retry_after_seconds))
    framework.include_router(operator_router(engine, observer, operations))
    framework.include_router(namespaces_router(engine))
    framework.include_router(leases_router(engine))
    framework.include_router(snapshots_router(engine))
    framework.include_router(imports_router(engine))
    framework.include_router(events_router(engine))
    framework.include_router(reference_router(whole_document))

    @framework.get("/openapi.json", tags=["pages"], summary="This interface for programs", operation_id="openapi")
    async def openapi() -> dict[str, Any]:
        """The OpenAPI 3.1 document."""
        return whole_document()

    add_handlers(framework, settings.retry_after_seconds, lambda template: whole_document()["paths"].get(template, {}))
    for path, methods in whole_document()["paths"].items():
        counters.declare(path, [method.upper() for method in methods if method != "parameters"])
    value_path = ValuePath(engine, settings, counters, admission)
    return Application(value_path, framework, counters, observer, admission)
