"""The command line from outside: answers, exit codes, JSON, and what it costs to start."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from rawblockd.command_line import MODULES
from rawblockd.settings import Settings
from tests.support.commands import run_command


class Daemon(BaseHTTPRequestHandler):
    """Answers as a daemon would, from a table."""

    answers: ClassVar[dict[tuple[str, str], tuple[int, object]]] = {
        ("GET", "/v1/status"): (200, {"state": "ready", "capacity": {"slots": {"free": 5}}, "reasons": [], "x": None}),
        ("GET", "/readyz?verbose"): (200, {"state": "degraded"}),
        ("GET", "/v1/recovery"): (200, {"skipped": [{"reason": "unreadable", "slot": 7}], "partial_recovery": True}),
        ("POST", "/v1/checkpoint"): (
            409,
            {"title": "Checkpoints are frozen.", "status": 409, "detail": "3 skipped", "code": "partial_recovery"},
        ),
        ("POST", "/v1/recovery/acknowledge"): (200, {"acknowledged_at": 1.5}),
    }

    def answer(self) -> None:
        status, body = self.answers[self.command, self.path]
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = answer

    def log_message(self, *_arguments: object) -> None:
        pass

    def address_string(self) -> str:
        return ""


class UnixHTTPServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0


@pytest.fixture(params=["tcp", "unix"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    server: HTTPServer
    if request.param == "tcp":
        server = HTTPServer(("127.0.0.1", 0), Daemon)
        address = f"http://127.0.0.1:{server.server_port}"
    else:
        path = tmp_path / "socket"
        server = UnixHTTPServer(str(path), Daemon)  # type: ignore[arg-type]
        address = f"unix://{path}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


NOBODY = "http://127.0.0.1:1"


def test_status(url: str) -> None:
    result = run_command("status", "--url", url, "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["capacity"] == {"slots": {"free": 5}}
    shown = run_command("status", "--url", url)
    assert shown.stdout.splitlines() == [
        "state  ready",
        "capacity:",
        "  slots:",
        "    free  5",
        "reasons: none",
        "x      -",
    ]


def test_health_is_good_while_degraded_but_serving(url: str) -> None:
    result = run_command("health", RAWBLOCKD_URL=url)
    assert (result.returncode, result.stdout) == (0, "healthy: degraded\n")


def test_health_is_bad_while_not_ready(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Daemon.answers, ("GET", "/readyz?verbose"), (503, {"state": "recovering"}))
    result = run_command("health", "--url", url, "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout) == {"healthy": False, "status": 503, "answer": {"state": "recovering"}}


def test_health_without_a_daemon() -> None:
    result = run_command("health", "--url", NOBODY)
    assert (result.returncode, result.stdout, result.stderr) == (1, "not healthy: unreachable\n", "")


def test_recovery(url: str) -> None:
    shown = run_command("recovery", "show", "--url", url)
    assert shown.returncode == 0
    assert "  - reason unreadable, slot 7" in shown.stdout.splitlines()
    acknowledged = run_command("recovery", "acknowledge", "--url", url, "--json")
    assert json.loads(acknowledged.stdout) == {"acknowledged_at": 1.5}


def test_a_refusal_of_the_daemon(url: str) -> None:
    result = run_command("checkpoint", "--url", url)
    assert result.returncode == 6
    assert result.stderr == "error: The daemon refused the request. Checkpoints are frozen. 3 skipped\n"
    as_json = run_command("checkpoint", "--url", url, "--json")
    assert as_json.returncode == 6
    error = json.loads(as_json.stdout)
    assert (error["code"], error["problem_code"], error["status"]) == ("daemon_refused", "partial_recovery", 409)


@pytest.mark.parametrize("command", [["status"], ["checkpoint"], ["recovery", "show"], ["recovery", "acknowledge"]])
def test_nobody_answers(command: list[str]) -> None:
    result = run_command(*command, "--url", NOBODY)
    assert result.returncode == 5
    assert result.stderr.startswith("error: No daemon answers at this URL. ")
    assert result.stderr.count("\n") == 1
    assert json.loads(run_command(*command, "--url", NOBODY, "--json").stdout)["code"] == "daemon_unreachable"


@pytest.mark.parametrize("wrong", ["nonsense", "ftp://127.0.0.1", "unix://relative", "http://h:x", "http://h/path", ""])
def test_a_url_that_is_none(wrong: str) -> None:
    result = run_command("status", "--url", wrong)
    assert result.returncode == 2
    assert "http://HOST:PORT or unix:///PATH" in result.stderr or "port" in result.stderr.lower()


def test_something_else_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        result = run_command("health", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert (result.returncode, result.stderr) == (1, "")


def test_wrong_settings_are_one_line_and_exit_code_2() -> None:
    for result in (
        run_command("serve", "--port", "http"),
        run_command("serve", RAWBLOCKD_PROT="1"),
        run_command("serve", "--config", "/nonexistent.toml"),
    ):
        assert result.returncode == 2
        assert result.stdout == ""
        assert result.stderr.startswith("error: A setting or an option is unknown or has a value that is not allowed. ")
        assert result.stderr.count("\n") == 1


def test_wrong_words() -> None:
    for arguments in (["nonsense"], ["serve", "--nonsense"], ["status", "surplus"], ["recovery", "nonsense"]):
        result = run_command(*arguments)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


def test_help_names_every_command_and_every_setting() -> None:
    everything = run_command("--help")
    assert everything.returncode == 0
    for command in MODULES:
        assert f"  {command} " in everything.stdout
        assert run_command(command, "--help").returncode == 0
    serve = run_command("serve", "--help").stdout
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')} " in serve


def test_health_loads_neither_the_engine_nor_a_server() -> None:
    script = (
        "import sys; sys.argv = ['rawblockd', 'health', '--url', 'http://127.0.0.1:1']\n"
        "from rawblockd.command_line import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.splitlines()[-1].split())
    assert "rawblockd" in loaded
    assert not loaded & {"numpy", "fastapi", "uvicorn", "structlog", "asyncio", "prometheus_client", "rich", "api"}
    assert "pydantic_settings" not in loaded
