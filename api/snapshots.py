"""``/v1/snapshots``: one moment of a namespace, taken, looked at and ended. Exports are in ``snapshot_export``."""

from __future__ import annotations

from fastapi import APIRouter, Request

from api.access.credentials import require
from api.access.roles import Role
from api.admission import credentials_of
from api.engine_face import EngineFace
from api.json_body import json_body, read_json
from api.problem_schema import PROBLEM_ANSWER, problem_answers
from api.restore_models import HoldBody, Namespace, SnapshotDocument, SnapshotId, SnapshotList
from api.serving import refuse_unless_serving
from storage.snapshots import SnapshotView


def find_snapshot(engine: EngineFace, request: Request, snapshot_id: str, role: Role) -> SnapshotView:
    """A snapshot whose namespace the request may act in. Raises SnapshotNotFound, Unauthenticated, Forbidden."""
    refuse_unless_serving(engine)
    view = engine.snapshot(snapshot_id)
    require(credentials_of(request.scope), role, view.namespace)
    return view


def snapshots_router(engine: EngineFace) -> APIRouter:
    """The routes of one engine."""
    router = APIRouter(tags=["snapshots"])

    @router.post(
        "/v1/namespaces/{namespace}/snapshots",
        summary="Take a snapshot",
        operation_id="take_snapshot",
        status_code=201,
        responses=problem_answers(400, 404, 413, 503, 507) | {422: PROBLEM_ANSWER},
        openapi_extra=json_body(HoldBody),
    )
    async def take_snapshot(namespace: Namespace, request: Request) -> SnapshotDocument:
        """Fixes the namespace as it is now, while writers go on: its entries of this moment stay readable by the
        snapshot's id until it ends. It ends with DELETE, with the process, or when no export has read of it for
        `ttl_seconds`. Slots of entries that are overwritten or removed meanwhile are kept for it."""
        body = await read_json(request, HoldBody)
        refuse_unless_serving(engine)
        return SnapshotDocument.of(
            await engine.take_snapshot(namespace, ttl_seconds=body.ttl_seconds, owner=body.owner)
        )

    @router.get("/v1/snapshots", summary="All snapshots", operation_id="snapshots", responses=problem_answers(503))
    async def snapshots() -> SnapshotList:
        """Who keeps how much, and for how long yet."""
        refuse_unless_serving(engine)
        return SnapshotList([SnapshotDocument.of(view) for view in engine.snapshots()])

    @router.get(
        "/v1/snapshots/{snapshot}",
        summary="A snapshot",
        operation_id="snapshot",
        responses=problem_answers(404, 503) | {422: PROBLEM_ANSWER},
    )
    async def snapshot(snapshot_id: SnapshotId, request: Request) -> SnapshotDocument:
        """What it has, and what it costs. Looking does not prolong it."""
        return SnapshotDocument.of(find_snapshot(engine, request, snapshot_id, Role.READER))

    @router.delete(
        "/v1/snapshots/{snapshot}",
        summary="End a snapshot",
        operation_id="end_snapshot",
        status_code=204,
        responses=problem_answers(404, 503) | {422: PROBLEM_ANSWER},
    )
    async def end_snapshot(snapshot_id: SnapshotId, request: Request) -> None:
        """What it kept is free from now on; an export under way is cut."""
        find_snapshot(engine, request, snapshot_id, Role.WRITER)
        engine.end_snapshot(snapshot_id)

    return router
