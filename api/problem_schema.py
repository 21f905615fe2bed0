"""Problem documents as the OpenAPI document declares them."""

from __future__ import annotations

from typing import Any

from api.problems import MEDIA_TYPE

SCHEMA_NAME = "Problem"

SCHEMA: dict[str, Any] = {
    "title": SCHEMA_NAME,
    "description": "An error (RFC 9457). Further members are facts of the case.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference", "description": "Where the problem is explained."},
        "title": {"type": "string", "description": "What the code means; the same for every case."},
        "status": {"type": "integer", "minimum": 400, "maximum": 599, "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What this case was about."},
        "code": {"type": "string", "pattern": "^[a-z0-9_]+$", "description": "Stable name of the error."},
    },
    "additionalProperties": True,
}

_CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{SCHEMA_NAME}"}}}

_RETRY_AFTER: dict[str, Any] = {
    "Retry-After": {
        "description": "Seconds after which to try again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 0},
    }
}

_DESCRIPTIONS = {
    400: "The request is not valid.",
    401: "It takes a token that the daemon knows.",
    403: "The token does not allow it, or a browser sent it for a page of another site.",
    404: "There is no such entry, or nothing at this path.",
    405: "The path does not take this method.",
    408: "The client paused for too long within the body.",
    409: "The state of the daemon does not allow it.",
    411: "The length of the body is not declared.",
    412: "A condition does not hold.",
    413: "The value is too large for this device, or the batch for one request.",
    415: "The body is of a type that is not taken here.",
    416: "The value has no bytes in the range.",
    421: "The Host field does not name this daemon.",
    422: "Parameters are missing or not valid.",
    429: "The token's rate of requests, or the budget of bytes written, is used up.",
    500: "The daemon made a mistake.",
    503: "Not now: recovering, draining, read-only, or a bounded resource is used up.",
    507: "The device is full.",
}


def problem_answer(status: int) -> dict[str, Any]:
    """The response object of one error status."""
    answer: dict[str, Any] = {"description": _DESCRIPTIONS[status], "content": _CONTENT}
    if status == 503:
        answer["headers"] = _RETRY_AFTER
    return answer


def problem_answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The response objects of several error statuses, as FastAPI takes them."""
    return {status: problem_answer(status) for status in statuses}


PROBLEM_ANSWER = problem_answer(422)
