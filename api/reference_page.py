"""``/docs``: the HTTP interface for people, made from the OpenAPI document; ``/openapi.json`` is the same for programs.

It needs no script and nothing from elsewhere: the daemon's machines often see no other network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from api.pages import page_response
from api.problems import HTTP_CODES, SERVER_CODES
from storage.errors import DeviceFailed, RawblockdError, RequestRefused, Unavailable


def reference_router(document: Callable[[], dict[str, Any]]) -> APIRouter:
    """The page of the document that ``document`` returns."""
    router = APIRouter(tags=["pages"])

    @router.get("/docs", summary="This page", operation_id="docs", response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        """All routes with their parameters and answers, and all problems."""
        return page_response("reference.html", document=document(), problems=_problems())

    return router


def _problems() -> list[tuple[str, int, str]]:
    """(code, status, title) of all that is answered, one for each code."""
    found = {code: (status, title) for status, (code, title) in HTTP_CODES.items()} | SERVER_CODES
    waiting: list[type[RawblockdError]] = [RequestRefused, Unavailable, DeviceFailed]
    while waiting:
        error = waiting.pop(0)
        found.setdefault(error.code, (error.http_status, error.sentence))
        waiting.extend(error.__subclasses__())
    return sorted((code, status, title) for code, (status, title) in found.items())
