"""The OpenAPI document: FastAPI's for the framework's routes, and the value routes declared by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.batch_openapi import batch_paths
from api.doors.openapi import door_paths
from api.doors.selection import DoorChoice
from api.problem_schema import SCHEMA, SCHEMA_NAME, problem_answer
from api.restore_openapi import restore_paths
from api.value_openapi import value_paths
from storage.version import VERSION

_DESCRIPTION = (
    "A persistent key-value cache on a raw block device. A read returns exactly the bytes of one put, or a miss; "
    "a mutation is acknowledged at the durability level it asked for. Errors are problem documents (RFC 9457)."
)


_ANYWHERE = (401, 403, 405, 421, 429, 500)
"""Statuses that any request can be answered with."""

_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token of the daemon's token file."},
    "basic": {"type": "http", "scheme": "basic", "description": "The token as password, with any user name."},
}


def openapi_document(framework: FastAPI, doors: Iterable[DoorChoice] = ()) -> dict[str, Any]:
    """The whole document as JSON-able objects, with the open doors for build caches."""
    document = get_openapi(title="rawblockd", version=VERSION, description=_DESCRIPTION, routes=framework.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    # The framework's own validation errors are answered as problems.
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas[SCHEMA_NAME] = SCHEMA
    document["components"]["securitySchemes"] = _SECURITY_SCHEMES
    # A daemon without tokens asks for none, and some routes never do.
    document["security"] = [{}, {"bearer": []}, {"basic": []}]
    by_hand = {**value_paths(), **batch_paths(), **restore_paths(), **door_paths(doors)}
    document["paths"] = {**by_hand, **document["paths"]}
    for path_item in document["paths"].values():
        for method, operation in path_item.items():
            if method != "parameters":
                _complete(operation["responses"])
    return document


def _complete(responses: dict[str, Any]) -> None:
    """Add what any request can be answered with."""
    if "422" in responses:
        responses["422"] = problem_answer(422)
    for status in _ANYWHERE:
        responses.setdefault(str(status), problem_answer(status))
