"""The ASGI application: values on the plain path, everything else on FastAPI."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import Message, Receive, Scope, Send

from api.answers import send_problem_unread
from api.control import control_router
from api.counters import OTHER, HttpCounters
from api.engine_face import EngineFace
from api.framework_problems import add_handlers, on_mistake
from api.headers import read_fields, refuse_upgrade_with_body
from api.health import RenderMetrics, health_router
from api.openapi import openapi_document
from api.operator_page import operator_router
from api.problems import problem_of
from api.reference_page import reference_router
from api.settings import ApiSettings
from api.value_paths import PREFIX
from api.values import Values
from storage.errors import ParameterInvalid

__all__ = ["ApiSettings", "Application", "HttpCounters", "create_app"]


class Application:
    """Sends each request to the plain value path or to the framework; counts what the framework answers."""

    def __init__(self, values: Values, framework: FastAPI, counters: HttpCounters) -> None:
        self.counters = counters
        self._values = values
        self._framework = framework
        self._guarded = ServerErrorMiddleware(self._dispatch, handler=on_mistake)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._framework(scope, receive, send)
        elif scope["raw_path"].startswith(PREFIX):
            await self._values(scope, receive, send)
        else:
            await self._count_framework(scope, receive, send)

    async def _count_framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        code = 500

        async def note_status(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        method = scope["method"]
        if method == "HEAD":
            # Routes are declared for GET alone; the server keeps the body of an answer to HEAD to itself.
            scope = dict(scope, method="GET")
        try:
            refuse_upgrade_with_body(read_fields(scope["headers"]))
            await self._framework(scope, receive, note_status)
        except ParameterInvalid as error:
            await send_problem_unread(receive, note_status, problem_of(error, 0), linger=False)
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            self.counters.record(route, method, code, time.perf_counter() - started)


def create_app(
    engine: EngineFace,
    settings: ApiSettings,
    render_metrics: RenderMetrics,
    counters: HttpCounters | None = None,
) -> Application:
    """The application of one engine, which need not be ready yet: until it is, values are answered 503.

    ``render_metrics`` gets the Accept field of a scrape. ``counters`` are those to fill, else new ones; either way
    they are the application's ``counters``.
    """
    counters = HttpCounters() if counters is None else counters
    framework = FastAPI(title="rawblockd", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    document: dict[str, Any] = {}

    def whole_document() -> dict[str, Any]:
        if not document:
            document.update(openapi_document(framework))
        return document

    framework.include_router(control_router(engine))
    framework.include_router(health_router(engine, render_metrics, settings.retry_after_seconds))
    framework.include_router(operator_router(engine))
    framework.include_router(reference_router(whole_document))

    @framework.get("/openapi.json", tags=["pages"], summary="This interface for programs", operation_id="openapi")
    async def openapi() -> dict[str, Any]:
        """The OpenAPI 3.1 document."""
        return whole_document()

    add_handlers(framework, settings.retry_after_seconds)
    for path, operations in whole_document()["paths"].items():
        counters.declare(path, [method.upper() for method in operations if method != "parameters"])
    return Application(Values(engine, settings, counters), framework, counters)
