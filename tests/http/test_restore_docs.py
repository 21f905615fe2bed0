"""What ``docs/snapshots.md`` shows is what happens."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from api.access.permissions import PERMISSIONS
from tests.http.daemon import ROOT, Daemon
from tests.http.restores import names, rows_of, set_schema

PAGE = Path(ROOT / "docs" / "snapshots.md").read_text(encoding="utf-8")


def test_the_client_of_the_page_heals_and_saves(daemon: Daemon) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known: dict[str, Any] = {}
    exec(compile(source, "snapshots.md", "exec"), known)
    client = known["Restore"](daemon.host, daemon.port)
    set_schema(daemon, "page-restore")
    lists = {"w": range(12), "m": range(10), "v": range(9)}
    parts = {part: (names(keys), rows_of(part, keys).tobytes()) for part, keys in lists.items()}
    differences, outcome = client.restore("page-restore", parts, "default")
    assert {(one["has"], one["lacks"]): one["keys"] for one in differences} == {
        ("w", "m"): 2,
        ("w", "v"): 3,
        ("m", "v"): 1,
    }
    assert (outcome["entries"], outcome["filled"]) == (12, {"w": 0, "m": 2, "v": 3})
    saved = client.save("page-restore")
    client.connection.close()
    assert saved.keys() == set(names(range(12)))
    whole = b"".join(rows_of(part, [3]).tobytes() for part in "wmv")
    filled = rows_of("w", [11]).tobytes() + np.full(8, 0.0, "<f4").tobytes() + np.full(8, 0.25, "<f4").tobytes()
    assert (saved[b"3"], saved[b"11"]) == (whole, filled)


def test_the_commands_of_the_page_are_answered_as_shown(daemon: Daemon) -> None:
    (block,) = re.findall(r"## With curl\n\n```\n(.*?)```", PAGE, re.DOTALL)
    commands = re.findall(r"^(?:curl|printf) (?:[^\n]*\n)(?:  \{[^\n]*\n)*", block, re.MULTILINE)
    assert len(commands) == 9
    ids: dict[str, str] = {}
    answers: list[str] = []
    daemon.http.delete("/v1/namespaces/model")
    for command in commands:
        text = command.replace("localhost:8790", f"{daemon.host}:{daemon.port}").replace("curl", "curl -sf")
        text = text.replace("-o model.export", "-o /dev/null")
        done = subprocess.run(["bash", "-c", text], env=ids, check=True, capture_output=True, text=True, timeout=60)
        answers.append(done.stdout)
        if "/imports --json" in command:
            ids["ID"] = json.loads(done.stdout)["id"]
        elif "/snapshots --json" in command:
            ids["SNAPSHOT"] = json.loads(done.stdout)["id"]
    shown = [json.loads(line) for line in re.findall(r"^    (\{.*\})$", block, re.MULTILINE)]
    assert [json.loads(answer) for answer in answers[4:6]] == shown
    assert daemon.http.get("/v1/kv/model/2").content == b"CCCCDDDD" + bytes(8)


def test_every_route_is_on_the_page() -> None:
    for template, method in PERMISSIONS:
        if "snapshot" in template or "import" in template:
            path = template.replace("{snapshot}", "{id}").replace("{import}", "{id}")
            assert f"| `{method} {path}" in PAGE, (template, method)
