"""Every code that the daemon answers with has a class in the client, and the client stands alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rawblockd_client
from api.problems import HTTP_CODES
from rawblockd.error_tree import error_classes
from rawblockd_client import Problem, problems
from rawblockd_client.errors import problem_of

PACKAGE = Path(rawblockd_client.__file__).parent
OWN_STATUS = 500
"""Errors without a status of their own are never answered."""


def test_every_code_has_a_class_of_its_status() -> None:
    answered = {kind.code: kind for _, kind in error_classes() if kind.http_status != OWN_STATUS}
    assert len(answered) > 40
    for code, kind in answered.items():
        problem = problem_of(code, kind.http_status, "why")
        assert type(problem) is not Problem, code
        assert type(problem).problem_code == code
        assert type(problem).retryable == (kind.http_status in (429, 503)), code
        assert str(type(problem).__doc__).startswith(f"{kind.http_status}: ")
    for code, _ in HTTP_CODES.values():
        assert type(problem_of(code, 400)) is not Problem, code


def test_kinds_in_the_daemon_are_kinds_in_the_client() -> None:
    assert issubclass(problems.EntryCorrupt, problems.EntryNotFound)
    assert issubclass(problems.Starting, problems.Unavailable)
    assert issubclass(problems.FlushFailed, problems.DeviceFailed)


def test_a_code_of_a_newer_daemon_is_a_plain_problem() -> None:
    problem = problem_of("something_new", 418, "why", {"a": 1}, 3.0)
    assert type(problem) is Problem
    assert (problem.code, problem.status, problem.fields, problem.retry_after_seconds) == (
        "something_new", 418, {"a": 1}, 3.0,
    )  # fmt: skip


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_the_oldest_python_understands_it(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_the_core_imports_nothing_but_the_standard_library() -> None:
    script = "import sys, rawblockd_client; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "rawblockd_client" in loaded
    assert not loaded & {"numpy", "aiohttp", "msgpack", "yarl", "rawblockd", "api", "storage", "metrics"}
