"""Commands with tokens: made, put into the file, shown to a daemon over TCP, TLS and a Unix socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.access.token_file import parse_tokens
from rawblockd.command_line import build_application
from rawblockd.command_line.output import CommandFailed
from tests.access.servers import Guarded, make_certificate
from tests.support.commands import run_command


def test_a_made_token_and_its_line_belong_together() -> None:
    flags = ("--namespace", "a", "--namespace", "b-*", "--requests-per-second", "5")
    plain = run_command("token", "ci", "--role", "writer", *flags)
    as_json = json.loads(run_command("token", "ci", "--role", "writer", *flags, "--json").stdout)
    for token, line in (
        (plain.stderr.strip().removeprefix("token: "), plain.stdout),
        (as_json["token"], as_json["line"]),
    ):
        found = parse_tokens(line.encode()).find(token.encode())
        assert (found.name, found.role) == ("ci", 2)
        assert "b-1" in found.scope and "c" not in found.scope
    assert plain.stdout.count("\n") == 1, "a line to append to the file"


@pytest.mark.parametrize(
    "arguments",
    [
        ("ci", "--role", "admin"),
        ("c i", "--role", "reader"),
        ('x"', "--role", "reader"),
        ("ci", "--role", "reader", "--namespace", "a/b"),
        ("ci", "--role", "reader", "--namespace", 'a"]'),
        ("ci", "--role", "reader", "--requests-per-second", "0"),
        ("ci", "--role", "reader", "--requests-per-second", "nan"),
    ],
)
def test_what_the_file_would_refuse_is_not_made(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandFailed) as refused:
        build_application(["token"])(["token", *arguments], standalone_mode=False)
    assert refused.value.exit_code == 2
    assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("commands")
    certificate, key = make_certificate(folder, "server")
    made = run_command("token", "op", "--role", "operator", "--secret-file", str(folder / "secret"))
    flags = ("--tls-certificate", str(certificate), "--tls-key", str(key), "--uds", str(folder / "s"), "--tcp")
    guarded = Guarded(folder, *flags, holders=())
    guarded.token_file.write_text(made.stdout)
    with guarded:
        yield guarded


def test_commands_show_their_token(daemon: Guarded) -> None:
    folder = daemon.folder
    url, secret, ca = f"https://localhost:{daemon.process.port}", str(folder / "secret"), str(folder / "server.pem")
    done = run_command("status", "--url", url, "--ca", ca, "--token-file", secret)
    assert done.returncode == 0, done.stderr
    assert "ready" in done.stdout
    done = run_command("checkpoint", "--uds", str(folder / "s"), RAWBLOCKD_CLIENT_TOKEN_FILE=secret)
    assert done.returncode == 0, done.stderr
    token = (folder / "secret").read_text().strip()
    done = run_command("recovery", "show", "--json", RAWBLOCKD_URL=url, RAWBLOCKD_CA=ca, RAWBLOCKD_TOKEN=token)
    assert json.loads(done.stdout)["partial_recovery"] is False
    done = run_command("status", "--uds", str(folder / "s"))
    assert done.returncode == 6
    assert "takes a token" in done.stderr
    done = run_command("health", "--uds", str(folder / "s"))
    assert done.returncode == 0, "a probe needs no token"
    done = run_command("status", "--url", url)
    assert done.returncode == 5
    assert "certificate" in done.stderr


def test_a_token_file_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("rbd_x")
    for mode, is_refused in ((0o644, True), (0o640, False), (0o600, False)):
        secret.chmod(mode)
        done = run_command("status", "--url", "http://127.0.0.1:1", "--token-file", str(secret))
        assert done.returncode == (2 if is_refused else 5), done.stderr
    assert run_command("status", "--token-file", str(tmp_path / "none")).returncode == 2
    secret.write_bytes(b"x" * 5000)
    assert run_command("status", "--token-file", str(secret)).returncode == 2
    secret.write_text("two words")
    assert run_command("status", "--token-file", str(secret)).returncode == 2
