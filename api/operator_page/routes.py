"""The page, its parts and its actions.

An action takes two steps: a page that says what will happen, with a form; and the form's request, which is answered
with a redirect to the page and the result there. Neither needs a script.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from api.control import START_MAX
from api.engine_face import EngineFace
from api.operations import Operation, Operations
from api.operator_page import picture, wording
from api.operator_page.forms import MEDIA_TYPE, read_form
from api.operator_page.history import HistoryView
from api.operator_page.observer import Observer
from api.operator_page.static_files import static_router
from api.pages import page_response
from api.problem_schema import PROBLEM_ANSWER, problem_answers
from storage.status import EngineStatus

SKIPPED_SHOWN = 5
SKIPPED_PER_PAGE = 50
LOG_SHOWN = 8
EVENTS_SHOWN = 10

Named = Annotated[Operation, Path(description="What to do.")]

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "seen": {"type": "string", "description": "What the confirmation was asked for, from its page."}
                    },
                }
            }
        },
    }
}


def operator_router(engine: EngineFace, observer: Observer, operations: Operations) -> APIRouter:
    """The routes of one engine."""
    router = APIRouter(tags=["pages"])
    router.include_router(static_router())
    _add_pages(router, engine, observer)
    _add_actions(router, engine, operations)
    return router


def _add_pages(router: APIRouter, engine: EngineFace, observer: Observer) -> None:
    @router.get(
        "/",
        summary="Page for the operator",
        operation_id="page",
        response_class=HTMLResponse,
        responses={422: PROBLEM_ANSWER},
    )
    async def page(
        done: Annotated[int | None, Query(ge=0, le=START_MAX, description="Line of the log to show as result.")] = None,
        hx_request: Annotated[str | None, Header(include_in_schema=False)] = None,
    ) -> HTMLResponse:
        """What the daemon is doing and what it needs, readable in ten seconds."""
        observer.note_state()
        # A page that renews itself draws its own curves.
        return page_response("operator.html", **_page_values(engine, observer, done, curves=hx_request is None))

    @router.get(
        "/skipped",
        summary="Skipped entries, for a person",
        operation_id="skipped_page",
        response_class=HTMLResponse,
        responses={422: PROBLEM_ANSWER},
    )
    async def skipped(
        start: Annotated[int, Query(ge=0, le=START_MAX, description="Index of the first skipped entry.")] = 0,
    ) -> HTMLResponse:
        """What the last recovery skipped, in pages."""
        status = engine.status()
        return page_response(
            "skipped.html",
            status=status,
            start=start,
            per_page=SKIPPED_PER_PAGE,
            entries=engine.skipped(start, SKIPPED_PER_PAGE),
            skip_texts=wording.SKIP_TEXTS,
        )

    @router.get("/v1/history", summary="The last ten minutes of traffic", operation_id="history", tags=["operator"])
    async def history() -> HistoryView:
        """Rates, hit ratio and latency of values, a sample every two seconds; kept in memory since the start."""
        return observer.history.view()


def _add_actions(router: APIRouter, engine: EngineFace, operations: Operations) -> None:
    @router.get(
        "/operator/{operation}",
        summary="Asks whether to carry out an operation",
        operation_id="confirmation_page",
        response_class=HTMLResponse,
        responses={422: PROBLEM_ANSWER},
    )
    async def confirmation(
        operation: Named,
        changed: Annotated[bool, Query(description="The situation has changed since it was asked before.")] = False,
    ) -> HTMLResponse:
        """Says what will happen; nothing happens yet."""
        status = engine.status()
        return page_response(
            "confirmation.html",
            status=status,
            operation=operation.value,
            changed=changed,
            possible=_is_possible(operation, status),
            seen=picture.evidence_mark(status),
        )

    @router.post(
        "/operator/{operation}",
        summary="Carries out an operation, from the page",
        operation_id="operate",
        status_code=303,
        response_class=RedirectResponse,
        responses=problem_answers(400, 422),
        openapi_extra=_FORM,
    )
    async def operate(operation: Named, request: Request) -> RedirectResponse:
        """Answers with a redirect to the page, which shows the result, also where the daemon refused.

        What was not shown is not acknowledged: if the situation has changed, the confirmation is asked for again.
        """
        form = await read_form(request)
        if operation is Operation.ACKNOWLEDGE and form.get("seen") != picture.evidence_mark(engine.status()):
            return RedirectResponse(f"/operator/{operation.value}?changed=true", 303)
        line = await operations.outcome(operation)
        return RedirectResponse(f"/?done={line.number}#result", 303)


def _page_values(engine: EngineFace, observer: Observer, done: int | None, *, curves: bool) -> dict[str, Any]:
    status, now = engine.status(), time.time()
    return {
        "status": status,
        "now": now,
        "state": wording.STATE_TEXTS[status.state],
        "reasons": picture.reason_views(status),
        "beginning": picture.is_beginning(status.state),
        "progress": engine.progress,
        "step": wording.STEP_TEXTS.get(engine.progress.step, engine.progress.step),
        "settleable": picture.may_be_settled(status),
        "adopt": picture.adopt_command(status),
        "entries": engine.skipped(0, SKIPPED_SHOWN) if status.partial_recovery else [],
        "skip_texts": wording.SKIP_TEXTS,
        "copies": picture.copy_views(status),
        "charts": picture.charts(observer.history.samples, now, curves=curves),
        "slot_bar": picture.slot_bar,
        "bar": picture.bar,
        "holds": picture.largest_holds(status),
        "namespaces": picture.largest_namespaces(status),
        "events": picture.event_views(engine.events.last(EVENTS_SHOWN)),
        "log": observer.log.newest(LOG_SHOWN),
        "result": observer.log.line(done) if done is not None else None,
    }


def _is_possible(operation: Operation, status: EngineStatus) -> bool:
    if operation is Operation.CHECKPOINT:
        return not status.partial_recovery
    return picture.may_be_settled(status)
