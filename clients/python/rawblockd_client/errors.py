"""What can go wrong: the daemon refuses (``Problem`` and its kinds), or it can't be talked to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class ClientError(Exception):
    """Base of everything this package raises on purpose."""


class ConnectionFailed(ClientError):
    """The daemon can't be reached, or the connection ended before the answer.

    Where a mutation with a condition was on its way, whether it took effect is not known.
    """


class ClientClosed(ClientError):
    """The client was closed."""


class DeadlineExceeded(ClientError):
    """The deadline passed before the request was answered."""


class AnswerInvalid(ClientError):
    """The answer is none that a rawblockd gives."""


class BufferTooSmall(ClientError):
    """The caller's buffer doesn't hold the value; ``needed_bytes`` would."""

    def __init__(self, needed_bytes: int, given_bytes: int) -> None:
        super().__init__(f"the value has {needed_bytes} bytes, the buffer {given_bytes}")
        self.needed_bytes = needed_bytes


class Problem(ClientError):
    """The daemon refused. ``code`` is stable, ``fields`` are facts of the case.

    Each code has a class of its own in ``rawblockd_client.problems``; a code of a newer daemon is raised as this one.
    """

    problem_code: ClassVar[str] = ""
    retryable: ClassVar[bool] = False
    """True where the same request may well succeed later."""
    kinds: ClassVar[dict[str, type[Problem]]] = {}

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if cls.problem_code:
            Problem.kinds.setdefault(cls.problem_code, cls)

    def __init__(
        self,
        code: str,
        status: int,
        detail: str = "",
        fields: Mapping[str, Any] | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {detail}" if detail else f"{status} {code}")
        self.code = code
        self.status = status
        self.detail = detail
        self.fields = dict(fields or {})
        self.retry_after_seconds = retry_after_seconds


def problem_of(
    code: str,
    status: int,
    detail: str = "",
    fields: Mapping[str, Any] | None = None,
    retry_after_seconds: float | None = None,
) -> Problem:
    """The problem of a code, of its own class if the code is known."""
    kind = Problem.kinds.get(code, Problem)
    return kind(code, status, detail, fields, retry_after_seconds)


def may_succeed_later(problem: Problem) -> bool:
    """429 and 503 say so by their status, whatever their code."""
    return problem.retryable or problem.status in (429, 503)
