"""``/v1/imports``: a namespace's whole new content, gathered part by part. Parts come in through ``import_parts``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.access.credentials import require
from api.access.roles import Role
from api.admission import credentials_of
from api.engine_face import EngineFace
from api.import_commits import ImportCommits
from api.json_body import json_body, read_json
from api.problem_schema import PROBLEM_ANSWER, problem_answers
from api.restore_models import (
    CommitBody,
    DifferenceList,
    HoldBody,
    ImportDocument,
    ImportId,
    ImportList,
    ImportOutcome,
    Namespace,
)
from api.serving import refuse_unless_serving


def imports_router(engine: EngineFace) -> APIRouter:
    """The routes of one engine."""
    router = APIRouter(tags=["imports"])
    commits = ImportCommits(engine)
    _add_sessions(router, engine, commits)
    _add_commits(router, engine, commits)
    return router


def _find(engine: EngineFace, commits: ImportCommits, request: Request, import_id: str) -> ImportDocument:
    """An import whose namespace the request may write to. Raises ImportNotFound, Unauthenticated, Forbidden."""
    refuse_unless_serving(engine)
    document = commits.document(import_id)
    require(credentials_of(request.scope), Role.WRITER, document.namespace)
    return document


def _add_sessions(router: APIRouter, engine: EngineFace, commits: ImportCommits) -> None:
    """Begin one, look at them, give one up."""

    @router.post(
        "/v1/namespaces/{namespace}/imports",
        summary="Begin an import",
        operation_id="begin_import",
        status_code=201,
        responses=problem_answers(400, 404, 413, 503) | {422: PROBLEM_ANSWER},
        openapi_extra=json_body(HoldBody),
    )
    async def begin_import(namespace: Namespace, request: Request) -> ImportDocument:
        """For a namespace with a schema. Nothing of it is visible before its commit, which replaces all that the
        namespace has. It ends, without a trace, with DELETE, with the process, or when it was not used for
        `ttl_seconds`."""
        body = await read_json(request, HoldBody)
        refuse_unless_serving(engine)
        return ImportDocument.of(await engine.begin_import(namespace, ttl_seconds=body.ttl_seconds, owner=body.owner))

    @router.get("/v1/imports", summary="All imports", operation_id="imports", responses=problem_answers(503))
    async def imports() -> ImportList:
        """Those that are not committed yet."""
        refuse_unless_serving(engine)
        return ImportList(commits.documents())

    @router.get(
        "/v1/imports/{import}",
        summary="An import",
        operation_id="import",
        responses=problem_answers(404, 503) | {422: PROBLEM_ANSWER},
    )
    async def import_(import_id: ImportId, request: Request) -> ImportDocument:
        """How far it is, and of one that was committed lately what came of it. Looking does not prolong it."""
        return _find(engine, commits, request, import_id)

    @router.delete(
        "/v1/imports/{import}",
        summary="Give an import up",
        operation_id="abort_import",
        status_code=204,
        responses=problem_answers(404, 409, 503) | {422: PROBLEM_ANSWER},
    )
    async def abort_import(import_id: ImportId, request: Request) -> None:
        """Nothing of it stays. One that is being committed can't be given up."""
        _find(engine, commits, request, import_id)
        await engine.abort_import(import_id)


def _add_commits(router: APIRouter, engine: EngineFace, commits: ImportCommits) -> None:
    """Compare the parts of one, publish it."""

    @router.get(
        "/v1/imports/{import}/differences",
        summary="What the parts of an import do not have in common",
        operation_id="import_differences",
        responses=problem_answers(404, 503) | {422: PROBLEM_ANSWER},
    )
    async def import_differences(import_id: ImportId, request: Request) -> DifferenceList:
        """For each pair of complete parts, in both directions, how many keys one has and the other lacks, with
        examples."""
        _find(engine, commits, request, import_id)
        return DifferenceList.of(await engine.import_differences(import_id))

    @router.post(
        "/v1/imports/{import}/commit",
        summary="Publish an import",
        operation_id="commit_import",
        response_model=None,
        responses=problem_answers(404, 409, 413, 503, 507)
        | {
            200: {"description": "It is done.", "model": ImportOutcome},
            202: {"description": "It takes longer: ask `GET /v1/imports/{import}`.", "model": ImportDocument},
            422: PROBLEM_ANSWER,
        },
        openapi_extra=json_body(CommitBody),
    )
    async def commit_import(
        import_id: ImportId, request: Request, response: Response
    ) -> ImportOutcome | ImportDocument:
        """By one durable record, in place of everything that the namespace had. It goes on if the client leaves;
        asked for again it is waited for, and once it is done its outcome is answered. After a refusal the import is
        open as before."""
        body = await read_json(request, CommitBody)
        _find(engine, commits, request, import_id)
        outcome = await commits.commit(import_id, body.policy, body.wait_seconds)
        if outcome is not None:
            return outcome
        response.status_code = 202
        return commits.document(import_id)
