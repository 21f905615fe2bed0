"""Probes and metrics: ``/livez``, ``/readyz``, ``/metrics``. Health tells the truth: a store that doesn't store isn't
healthy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import PlainTextResponse, Response

from api.engine_face import EngineFace
from api.problem_schema import problem_answer
from api.problems import MEDIA_TYPE, NOT_READY, SERVER_CODES, Problem
from api.serving import is_ready
from storage.status import EngineState

RenderMetrics = Callable[[str | None], tuple[bytes, str]]
"""From the Accept field of a request to a body and its content type."""

NO_STORE = {"cache-control": "no-store"}

_TEXT: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
_READINESS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["state", "reasons", "partial_recovery", "skipped_entries"],
    "properties": {
        "state": {"type": "string", "enum": [state.value for state in EngineState]},
        "reasons": {"type": "array", "items": {"type": "string"}},
        "partial_recovery": {"type": "boolean"},
        "skipped_entries": {"type": "integer", "minimum": 0},
        "progress": {
            "type": "object",
            "description": "While starting and recovering.",
            "required": ["step", "ratio"],
            "properties": {"step": {"type": "string"}, "ratio": {"type": "number", "minimum": 0, "maximum": 1}},
        },
    },
}
_READY = {
    "description": "Reads and writes are accepted.",
    "content": {**_TEXT, "application/json": {"schema": _READINESS_SCHEMA}},
}
_NOT_READY = problem_answer(503)
_NOT_READY["content"] = {**_NOT_READY["content"], "application/json": {"schema": _READINESS_SCHEMA}}


def health_router(engine: EngineFace, render_metrics: RenderMetrics, retry_after_seconds: int) -> APIRouter:
    """The routes of one engine."""
    router = APIRouter(tags=["health"])
    retry_after = {"retry-after": str(retry_after_seconds)}

    @router.get(
        "/livez",
        summary="Is the process alive?",
        operation_id="livez",
        response_class=PlainTextResponse,
        responses={200: {"description": "It answers.", "content": _TEXT}},
    )
    async def livez() -> PlainTextResponse:
        """200 as long as the process answers at all, whatever the state of the store."""
        return PlainTextResponse("alive\n", headers=NO_STORE)

    @router.get(
        "/readyz",
        summary="Does the store accept reads and writes?",
        operation_id="readyz",
        response_class=Response,
        responses={200: _READY, 503: _NOT_READY},
    )
    async def readyz(
        verbose: Annotated[str | None, Query(description="If present, the answer is JSON and says why.")] = None,
    ) -> Response:
        """200 in ready, and in degraded while reads and writes are accepted; else 503."""
        ready = is_ready(engine)
        headers = NO_STORE if ready else {**NO_STORE, **retry_after}
        status = 200 if ready else 503
        if verbose is not None:
            return Response(json.dumps(readiness(engine)), status, headers, "application/json")
        if ready:
            return PlainTextResponse(f"{engine.state.value}\n", headers=headers)
        detail = ", ".join(reason.value for reason in engine.reasons)
        title = SERVER_CODES[NOT_READY][1]
        problem = Problem(503, NOT_READY, title, detail, {"state": engine.state.value})
        return Response(problem.body(), status, headers, MEDIA_TYPE)

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        operation_id="metrics",
        response_class=Response,
        responses={
            200: {
                "description": "Prometheus text or OpenMetrics, as Accept asks.",
                "content": {**_TEXT, "application/openmetrics-text": {"schema": {"type": "string"}}},
            }
        },
    )
    async def metrics(accept: Annotated[str | None, Header(include_in_schema=False)] = None) -> Response:
        """All label values of closed sets are present from the start; keys and clients are never in a label."""
        body, content_type = render_metrics(accept)
        return Response(body, headers={**NO_STORE, "content-type": content_type})

    return router


def readiness(engine: EngineFace) -> dict[str, Any]:
    """What the verbose probe says. While the engine recovers, with how far it is."""
    picture = engine.status()
    answer: dict[str, Any] = {
        "state": engine.state.value,
        "reasons": [reason.value for reason in engine.reasons],
        "partial_recovery": picture.partial_recovery,
        "skipped_entries": picture.skipped_entries,
    }
    if engine.state in (EngineState.STARTING, EngineState.RECOVERING):
        answer["progress"] = {"step": engine.progress.step, "ratio": engine.progress.ratio}
    return answer
