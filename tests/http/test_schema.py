"""The OpenAPI document and the daemon agree: a fuzzer made from the one finds nothing in the other."""

from __future__ import annotations

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, StopReason, events, from_schema

from tests.http.daemon import Daemon

EXAMPLES_PER_ROUTE = 60
REQUESTS_MIN = 300
"""Fewer would mean that the fuzzer did not get at the routes."""

CONFIG = {
    "seed": 20240607,
    "generation": {"max-examples": EXAMPLES_PER_ROUTE, "deterministic": True, "database": "none"},
    "checks": {
        # A condition that is well formed may still fail: 412 is what it is for.
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "3xx", "401", "403", "404", "409", "412", "429", "5xx"],
        },
    },
}


def test_a_fuzzer_finds_nothing(daemon: Daemon) -> None:
    config = SchemathesisConfig.from_dict(CONFIG)
    schema = schemathesis.openapi.from_url(f"{daemon.url}/openapi.json", config=config)
    found: list[str] = []
    requests = 0
    end: events.EngineFinished | None = None
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            requests += len(event.recorder.cases)
            if event.status is Status.FAILURE:
                found += _failures(event)
        elif isinstance(event, (events.NonFatalError, events.FatalError)):
            found.append(repr(event))
        elif isinstance(event, events.EngineFinished):
            end = event
    assert found == []
    assert end is not None
    assert end.stop_reason is StopReason.COMPLETED
    assert requests > REQUESTS_MIN
    daemon.wait_at_rest()


def test_every_route_and_every_error_is_declared(daemon: Daemon) -> None:
    document = daemon.http.get("/openapi.json").json()
    values = document["paths"]["/v1/kv/{namespace}/{key}"]
    declared = {method: set(operation["responses"]) for method, operation in values.items() if method != "parameters"}
    assert declared["get"] >= {"200", "206", "304", "400", "404", "412", "416", "503"}
    assert declared["put"] >= {"201", "204", "400", "408", "411", "412", "413", "503", "507"}
    assert declared["delete"] >= {"204", "400", "404", "412", "503"}
    for path in document["paths"].values():
        for method, operation in path.items():
            if method not in ("parameters", "head"):
                for status, answer in operation["responses"].items():
                    if int(status) >= 400:
                        assert "application/problem+json" in answer["content"]


def _failures(event: events.ScenarioFinished) -> list[str]:
    found = []
    for case_id, checks in event.recorder.checks.items():
        for check in checks:
            if check.failure_info is not None:
                case = event.recorder.cases[case_id].value
                found.append(f"{check.name}: {check.failure_info.failure}\n{case.as_curl_command()}")
    return found
