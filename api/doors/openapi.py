"""The open doors in the OpenAPI document, in short: what a request does there is said at the value routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from api.doors.door import Route
from api.doors.doors import DOORS
from api.doors.selection import DoorChoice
from api.problem_schema import problem_answer

_METHODS = {
    "GET": ("Read", (200, 206, 304), (400, 404, 412, 416, 503)),
    "HEAD": ("Ask for", (200, 304), (400, 404, 412, 503)),
    "PUT": ("Store", (201, 204), (400, 408, 411, 412, 413, 503, 507)),
    "DELETE": ("Delete", (204,), (400, 404, 412, 503)),
}
"""What a method does, how it succeeds and how it doesn't. OpenAPI has no words for WebDAV's own methods."""

_SUCCESSES = {
    200: "The value, as it was put.",
    201: "Stored; there was no entry.",
    204: "Done; there was an entry.",
    206: "The range of the value.",
    304: "The client's copy is the present one.",
}
_WITH_BODY = (200, 206)

_Object = dict[str, Any]


def door_paths(choices: Iterable[DoorChoice]) -> _Object:
    """The ``paths`` of these doors."""
    paths: _Object = {}
    for choice in choices:
        for route in DOORS[choice.name].routes:
            operations = {
                method.lower(): _operation(choice, route.template, method)
                for method in route.answers
                if method in _METHODS
            }
            if operations:
                paths[route.template] = {"parameters": [_key(route)], **operations}
    return paths


def _operation(choice: DoorChoice, template: str, method: str) -> _Object:
    verb, successes, failures = _METHODS[method]
    kind = template.split("/")[2].strip("{}") if template.count("/") > 2 else "entry"
    responses: _Object = {}
    for status in successes:
        responses[str(status)] = {"description": _SUCCESSES[status]}
        if status in _WITH_BODY and method == "GET":
            responses[str(status)]["content"] = _any_content()
    for status in failures:
        answer = problem_answer(status)
        bodiless = method == "HEAD" and status != 503
        responses[str(status)] = {"description": answer["description"]} if bodiless else answer
    operation: _Object = {
        "operationId": f"{choice.name.value}_{method.lower()}_{kind}",
        "tags": ["build caches"],
        "summary": f"{verb} an entry of the build cache of {choice.name.value}",
        "description": f"For {choice.name.value} alone, whose namespace is `{choice.namespace}`. Header fields, "
        "conditions and durability are those of the value routes.",
        "responses": responses,
    }
    if method == "PUT":
        operation["requestBody"] = {"required": False, "content": {"application/octet-stream": _binary()}}
    return operation


def _any_content() -> _Object:
    return {"*/*": _binary()}


def _binary() -> _Object:
    return {"schema": {"type": "string", "format": "binary"}}


def _key(route: Route) -> _Object:
    name = route.template[route.template.index("{") + 1 : route.template.index("}")]
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": "As the client makes it.",
        "schema": {"type": "string", "pattern": f"^{route.shape}$"},
    }
