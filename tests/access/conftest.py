"""One guarded daemon per worker, since a start costs more than a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from api.access.roles import Role
from tests.access.servers import Guarded, Holder

READER = Holder("reader", Role.READER)
WRITER = Holder("writer", Role.WRITER)
OPERATOR = Holder("operator", Role.OPERATOR)
TEAM_READER = Holder("team-reader", Role.READER, ("team-a",))
TEAM_WRITER = Holder("team-writer", Role.WRITER, ("team-*", "shared"))
TEAM_OPERATOR = Holder("team-operator", Role.OPERATOR, ("team-a",))
STRANGER = Holder("stranger", Role.OPERATOR)
"""Its token is in no file."""

HOLDERS = (READER, WRITER, OPERATOR, TEAM_READER, TEAM_WRITER, TEAM_OPERATOR)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    doors = "bazel=team-a,ccache=team-c,gradle,sccache"
    with Guarded(tmp_path_factory.mktemp("guarded"), "--doors", doors, holders=HOLDERS) as running:
        yield running
