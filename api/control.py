"""The operator's routes: status, recovery report, acknowledgement, checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query

from api.engine_face import EngineFace
from api.limits import SKIPPED_PAGE_MAX
from api.operations import Operations
from api.problem_schema import PROBLEM_ANSWER, problem_answers
from storage.recovery.report import SkippedView
from storage.retry import RetryResult
from storage.status import CheckpointStatus, EngineStatus, RecoveryStatus

PAGE_DEFAULT = 100
START_MAX = 2**53
"""Largest page start: integers beyond are not exact in JSON."""


@dataclass(slots=True)
class RecoveryReport:
    """The last recovery, and a page of the entries that it skipped and nobody has acknowledged yet."""

    partial_recovery: bool
    skipped_entries: int
    skipped_by_reason: dict[str, int]
    recovery: RecoveryStatus
    start: int
    entries: list[SkippedView]


def control_router(engine: EngineFace, operations: Operations) -> APIRouter:
    """The routes of one engine."""
    router = APIRouter(tags=["operator"])

    @router.get("/v1/status", summary="The whole state of the daemon", operation_id="status")
    async def status() -> EngineStatus:
        """One consistent picture: state and its reasons, recovery, checkpoints, journal, capacity, device, buffers."""
        return engine.status()

    @router.get(
        "/v1/recovery",
        summary="What the last recovery found",
        operation_id="recovery",
        responses={422: PROBLEM_ANSWER},
    )
    async def recovery(
        start: Annotated[int, Query(ge=0, le=START_MAX, description="Index of the first skipped entry.")] = 0,
        limit: Annotated[int, Query(ge=1, le=SKIPPED_PAGE_MAX, description="Most skipped entries.")] = PAGE_DEFAULT,
    ) -> RecoveryReport:
        """Counts, and the skipped entries one by one, in pages: the next one starts at `start + limit`."""
        picture = engine.status()
        return RecoveryReport(
            partial_recovery=picture.partial_recovery,
            skipped_entries=picture.skipped_entries,
            skipped_by_reason=picture.skipped_by_reason,
            recovery=picture.recovery,
            start=start,
            entries=list(engine.skipped(start, limit)),
        )

    @router.post(
        "/v1/recovery/acknowledge",
        summary="Accept the loss of a partial recovery",
        operation_id="acknowledge",
        responses=problem_answers(409, 503),
    )
    async def acknowledge() -> RecoveryStatus:
        """Frees the quarantined slots, writes a checkpoint and lets automatic checkpoints go on. Not reversible."""
        return await operations.acknowledge()

    @router.post(
        "/v1/recovery/retry",
        summary="Try to repair what was skipped",
        operation_id="retry",
        responses=problem_answers(409, 503),
    )
    async def retry() -> RetryResult:
        """Reads quarantined slots again and restores what verifies, never over a key that was put or deleted since."""
        return await operations.retry()

    @router.post(
        "/v1/checkpoint",
        summary="Write a checkpoint now",
        operation_id="checkpoint",
        responses=problem_answers(409, 503),
    )
    async def checkpoint() -> CheckpointStatus:
        """Answers when it is durable. Refused while partial recovery lasts: the older copies are evidence."""
        return await operations.checkpoint()

    return router
