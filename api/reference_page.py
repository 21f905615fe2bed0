"""``/docs``: the HTTP interface for people, made from the OpenAPI document; ``/openapi.json`` is the same for programs.

It needs no script and nothing from elsewhere: the daemon's machines often see no other network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from api.pages import page_response
from api.problems import HTTP_CODES
from storage.errors import RawblockdError, RequestRefused, Unavailable


def reference_router(document: Callable[[], dict[str, Any]]) -> APIRouter:
    """The page of the document that ``document`` returns."""
    router = APIRouter(tags=["pages"])

    @router.get("/docs", summary="This page", operation_id="docs", response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        """All routes with their parameters and answers, and all problems."""
        return page_response("reference.html", document=document(), problems=sorted(set(_problems())))

    return router


def _problems() -> Iterator[tuple[str, int, str]]:
    for status, (code, title) in HTTP_CODES.items():
        yield code, status, title
    yield "not_ready", 503, "The store does not accept reads and writes now."
    waiting: list[type[RawblockdError]] = [RequestRefused, Unavailable]
    while waiting:
        error = waiting.pop()
        yield error.code, error.http_status, error.sentence
        waiting.extend(error.__subclasses__())
