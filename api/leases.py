"""``/v1/leases``: who holds entries, and letting them go. Leases are made by ``:lease`` and ``:exists``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path

from api.engine_face import EngineFace
from api.limits import LEASE_ID_MAX_CHARS
from api.problem_schema import PROBLEM_ANSWER, problem_answers
from api.serving import refuse_unless_serving


@dataclass(slots=True)
class LeaseDocument:
    """A lease without its id, which is its holder's secret."""

    owner: str
    namespace: str
    entries: int
    held_bytes: int
    expires_in_seconds: float


@dataclass(slots=True)
class LeaseList:
    leases: list[LeaseDocument]


def leases_router(engine: EngineFace) -> APIRouter:
    """The routes of one engine."""
    router = APIRouter(tags=["leases"])

    @router.get("/v1/leases", summary="All leases", operation_id="leases", responses=problem_answers(503))
    async def leases() -> LeaseList:
        """Who holds how much, and for how long yet."""
        refuse_unless_serving(engine)
        return LeaseList(
            [
                LeaseDocument(view.owner, view.namespace, view.entries, view.held_bytes, view.expires_in_seconds)
                for view in engine.leases()
            ]
        )

    @router.delete(
        "/v1/leases/{lease}",
        summary="Release a lease",
        operation_id="release_lease",
        status_code=204,
        responses=problem_answers(404, 503) | {422: PROBLEM_ANSWER},
    )
    async def release_lease(
        lease: Annotated[str, Path(description="Its id.", min_length=1, max_length=LEASE_ID_MAX_CHARS)],
    ) -> None:
        """What it held can be evicted, and slots of entries that are gone are reused, from now on."""
        refuse_unless_serving(engine)
        engine.release(lease)

    return router
