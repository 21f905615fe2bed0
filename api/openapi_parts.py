"""Pieces of the OpenAPI document that the routes declared by hand share."""

from __future__ import annotations

from typing import Any

from api.limits import LEASE_ID_MAX_CHARS
from api.problem_schema import problem_answer
from storage.entries import Durability
from storage.limits import NAMESPACE_MAX_CHARS

Object = dict[str, Any]


def namespace() -> Object:
    return parameter(
        "namespace",
        "path",
        "The namespace (tenant).",
        {"type": "string", "pattern": f"^[A-Za-z0-9._-]{{1,{NAMESPACE_MAX_CHARS}}}$"},
    )


def durability() -> Object:
    return parameter(
        "durability",
        "query",
        "When to acknowledge: `none` at once, `journal` when it survives the end of the process, `flush` when it "
        "survives power loss.",
        {"type": "string", "enum": [level.value for level in Durability]},
    )


def parameter(
    name: str, place: str, description: str, schema: Object | None = None, *, example: str | None = None
) -> Object:
    shown = {} if example is None else {"example": example}
    return {
        **shown,
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": schema or {"type": "string"},
    }


def problems(*statuses: int) -> Object:
    return {str(status): problem_answer(status) for status in statuses}


def answer(description: str, headers: Object, *, body: bool = False) -> Object:
    answer: Object = {"description": description, "headers": headers}
    if body:
        # As it was put: any media type, application/octet-stream if the put named none.
        answer["content"] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    return answer


def header(description: str, schema: Object | None = None, *, required: bool = True) -> Object:
    return {"description": description, "required": required, "schema": schema or {"type": "string"}}


def etag() -> Object:
    return header("The entry's write id.", {"type": "string", "pattern": '^"[0-9a-f]{16}"$'})


def lease() -> Object:
    return parameter(
        "lease",
        "query",
        "The id of a lease: what it holds is read, also if it was overwritten, deleted or has expired since.",
        {"type": "string", "minLength": 1, "maxLength": LEASE_ID_MAX_CHARS},
    )
