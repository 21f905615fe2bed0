"""A request and its answer, without a connection: what the sync and the async client share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, TypeVar
from urllib.parse import quote

from rawblockd_client.codec import Buffer
from rawblockd_client.errors import AnswerInvalid, Problem, problem_of
from rawblockd_client.models import Key, key_bytes

T = TypeVar("T")

MSGPACK = "application/msgpack"
PROBLEM = "application/problem+json"
_UNESCAPED = "/-._~"


@dataclass
class Answer:
    """``headers`` have their names in small letters. ``body`` is empty where it went into the caller's buffer."""

    status: int
    headers: Mapping[str, str]
    body: Buffer
    received_bytes: int = 0

    def field(self, name: str) -> str:
        """Raises AnswerInvalid without it."""
        try:
            return self.headers[name]
        except KeyError:
            raise AnswerInvalid(f"the answer has no field {name}") from None

    def json(self) -> Any:
        """Raises AnswerInvalid."""
        try:
            return json.loads(bytes(self.body))
        except ValueError as error:
            raise AnswerInvalid(f"the answer is no JSON: {error}") from None


@dataclass
class Call(Generic[T]):
    """One request and how its answer is understood."""

    method: str
    target: str
    parse: Callable[[Answer], T]
    headers: dict[str, str] = field(default_factory=dict)
    body: Sequence[Buffer] | None = None
    """Pieces that are sent one behind the other; None: no body."""
    repeatable: bool = True
    """False if the request must not take effect twice: it is not made again when the connection breaks."""
    sink: memoryview | None = None
    """Where the body of a 200 or 206 goes. A larger body raises BufferTooSmall."""

    @property
    def body_bytes(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.body or ())


def value_target(namespace: str, key: Key, parameters: Mapping[str, Any] | None = None) -> str:
    return f"{namespace_target(namespace)}/{quote(key_bytes(key), safe=_UNESCAPED)}{query(parameters)}"


def namespace_target(namespace: str, verb: str = "") -> str:
    name = quote(namespace, safe="")
    return f"/v1/kv/{name}:{verb}" if verb else f"/v1/kv/{name}"


def query(parameters: Mapping[str, Any] | None) -> str:
    """With what is not None."""
    pairs = [
        f"{name}={quote(value if isinstance(value, bytes) else str(value), safe='')}"
        for name, value in (parameters or {}).items()
        if value is not None
    ]
    return "?" + "&".join(pairs) if pairs else ""


def pieces_of(value: Buffer | Sequence[Buffer]) -> Sequence[Buffer]:
    """The value as pieces of bytes, without copying. Raises TypeError for what has no bytes in order."""
    pieces: Sequence[Buffer] = value if isinstance(value, (list, tuple)) else [value]  # type: ignore[list-item]
    return [_as_bytes(piece) for piece in pieces]


def _as_bytes(piece: Buffer) -> Buffer:
    if isinstance(piece, (bytes, bytearray)):
        return piece
    view = memoryview(piece)
    return view.cast("B") if view.nbytes else b""


def is_miss(answer: Answer) -> bool:
    """True if what isn't there is the entry, and not a lease, a part or a route."""
    return answer.status == 404 and "cache-status" in answer.headers


def problem_of_answer(answer: Answer) -> Problem:
    """The problem that an answer states. Raises AnswerInvalid if it states none."""
    retry_after: float | None = None
    text = answer.headers.get("retry-after", "")
    if text.isdigit():
        retry_after = float(text)
    if not answer.body:  # of a HEAD: the status is all there is
        return problem_of("not_found" if is_miss(answer) else "", answer.status, "", {}, retry_after)
    if answer.headers.get("content-type", "").partition(";")[0] != PROBLEM:
        return problem_of("", answer.status, f"an answer of status {answer.status}", {}, retry_after)
    document = answer.json()
    if not isinstance(document, dict) or not isinstance(document.get("code"), str):
        raise AnswerInvalid("the problem has no code")
    fields = {name: value for name, value in document.items() if name not in ("type", "title", "status", "detail")}
    detail = str(document.get("detail", ""))
    return problem_of(document["code"], answer.status, detail, fields, retry_after)
