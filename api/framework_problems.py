"""The framework's own errors as problem documents: unknown paths, wrong methods, bad parameters, mistakes of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from api.errors import BatchTooLarge
from api.problems import Problem, problem_of, problem_of_status
from storage.errors import RawblockdError


def response_of(problem: Problem) -> Response:
    body = problem.body()
    response = Response(body, problem.status)
    response.raw_headers = [*problem.all_headers(), (b"content-length", b"%d" % len(body))]
    return response


def add_handlers(
    app: FastAPI, retry_after_seconds: int, operations_of: Callable[[str], Iterable[str]] = lambda template: ()
) -> None:
    """Make every error that leaves a route of ``app`` a problem document.

    ``operations_of`` tells the methods, in small letters, of a path template: the framework knows those of the first
    route alone.
    """

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        # The framework's detail is only the phrase of the status.
        problem = problem_of_status(error.status_code)
        for name, value in (error.headers or {}).items():
            if name.lower() == "allow":
                template = getattr(request.scope.get("route"), "path", "")
                value = _allow(value, operations_of(template))
            problem.headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
        return response_of(problem)

    async def on_validation(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        reasons = [_reason(found) for found in error.errors()]
        return response_of(problem_of_status(422, "; ".join(f"{at}: {text}" for at, text in reasons)))

    async def on_ours(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RawblockdError)
        response = response_of(problem_of(error, retry_after_seconds))
        if isinstance(error, BatchTooLarge):
            response.raw_headers.append((b"connection", b"close"))  # the rest of the body was not read
        return response

    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(RawblockdError, on_ours)
    app.add_exception_handler(Exception, on_mistake)


async def on_mistake(_request: Request, _error: Exception) -> Response:
    """500. The connection ends with it: nobody knows how much of a body was read. The server logs the exception."""
    response = response_of(problem_of_status(500))
    response.raw_headers.append((b"connection", b"close"))
    return response


def _allow(methods: str, more: Iterable[str] = ()) -> str:
    """Every path that takes GET takes HEAD. ``more`` are methods of the path's other routes."""
    names = {name.strip() for name in methods.split(",")} | {name.upper() for name in more}
    if "GET" in names:
        names.add("HEAD")
    return ", ".join(sorted(names))


def _reason(found: Any) -> tuple[str, str]:
    return ".".join(str(part) for part in found["loc"][1:]), str(found["msg"])
