"""No token comes out of the daemon or its commands again, whether it was good or bad."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from api.access.roles import Role
from rawblockd.command_line.daemon_client import Target
from tests.access.servers import Guarded, Holder, write_tokens
from tests.http.raw_client import RawClient
from tests.support.daemon_process import clean_environment

GOOD = Holder("good", Role.OPERATOR, rate=1000.0)
LIMITED = Holder("limited", Role.READER, ("somewhere",), rate=0.001)
BAD = Holder("bad", Role.OPERATOR)
HOLDERS = (GOOD, LIMITED, BAD)


def forms(token: str) -> list[bytes]:
    """How a token could be written: as it is, within Basic, and its digest."""
    plain = token.encode()
    found = [plain, plain.removeprefix(b"rbd_")[:20], hashlib.sha256(plain).hexdigest().encode()]
    for user in (b"", b"whoever"):
        # Without the ends, which depend on what stands around it.
        found.append(base64.b64encode(user + b":" + plain)[8:-8])
    return found


def test_no_output_holds_a_token(tmp_path: Path) -> None:
    """Log at its most talkative, all answers, status, metrics, the process's arguments, and what commands print."""
    seen: list[bytes] = []
    flags = ("--log-level", "debug")
    with Guarded(tmp_path, *flags, holders=(GOOD, LIMITED), RAWBLOCKD_TOKEN=GOOD.token) as daemon:
        for holder in HOLDERS:
            for form in (holder.bearer, holder.basic, ("Authorization", holder.token), ("Cookie", holder.token)):
                for method, path in (
                    ("GET", "/v1/status"), ("GET", "/metrics"), ("GET", "/"), ("GET", "/v1/kv/somewhere/k"),
                    ("PUT", "/v1/kv/somewhere/k"), ("GET", "/nothing"), ("POST", "/v1/checkpoint"), ("GET", "/docs"),
                    ("BREW", "/v1/status"), ("GET", "/v1/kv/%zz/k"),
                ):  # fmt: skip
                    answer = daemon.ask(method, path, form, body=b"" if method in ("PUT", "POST") else None)
                    seen += [answer.body, repr(answer.headers).encode()]
        for broken in (
            f"GET /{GOOD.token} HTTP/1.1\r\nHost: x\r\n\r\n",
            f"GET / HTTP/1.1\r\nAuthorization {GOOD.token}\r\n\r\n",
            f"{GOOD.token}\r\n\r\n",
        ):
            with RawClient(daemon.address) as client:
                client.send(broken.encode())
                answer_bytes = client.answer_head()
                seen.append(repr(answer_bytes).encode())
        # Commands, with a good token, a bad one, and a token where the digest belongs.
        (tmp_path / "secret").write_text(BAD.token)
        (tmp_path / "secret").chmod(0o600)
        url = f"http://127.0.0.1:{daemon.process.port}"
        seen.append(command("status", "--url", url, RAWBLOCKD_TOKEN=GOOD.token))
        seen.append(command("status", "--url", url, "--token-file", str(tmp_path / "secret")))
        seen.append(command("status", "--url", url, "--json", RAWBLOCKD_TOKEN=f"{GOOD.token} {GOOD.token}"))
        seen.append(command("status", "--url", "http://127.0.0.1:1", RAWBLOCKD_TOKEN=GOOD.token))
        write_tokens(daemon.token_file, GOOD)
        with daemon.token_file.open("a") as file:
            file.write(f'oops = {{ sha256 = "{BAD.token}", role = "reader" }}\n')
        daemon.process.process.send_signal(signal.SIGHUP)
        daemon.process.wait_logged("tokens not reloaded: those from before still hold")
        seen.append(Path(f"/proc/{daemon.process.process.pid}/cmdline").read_bytes())
        assert daemon.process.stop() == 0
        log = daemon.process.log_text()
        assert "tokens loaded" in log
        seen.append(log.encode())
    everything = b"\n".join(seen)
    assert b'"operator"' in everything or b"operator" in everything
    for holder in HOLDERS:
        for written in forms(holder.token):
            assert written not in everything, (holder.name, written)


def command(*arguments: str, **environment: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "rawblockd", *arguments],
        capture_output=True,
        check=False,
        timeout=60,
        env=clean_environment(**environment),
    )
    return done.stdout + done.stderr


def test_the_client_does_not_show_its_token() -> None:
    assert GOOD.token not in repr(Target("http://localhost", GOOD.token))


def test_no_command_takes_a_token_as_an_argument() -> None:
    """Arguments can be read by every user of the machine."""
    for name in ("status", "health", "checkpoint"):
        shown = command(name, "--help", COLUMNS="200").decode()
        assert "--token-file" in shown
        assert "--token " not in shown


def test_a_secret_file_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    line = command("token", "ci", "--role", "reader", "--secret-file", str(path)).decode()
    assert os.stat(path).st_mode & 0o777 == 0o600
    token = path.read_text().strip()
    assert token not in line
    assert hashlib.sha256(token.encode()).hexdigest() in line
    assert b"can't be made" in command("token", "ci", "--role", "reader", "--secret-file", str(path))
    assert path.read_text().strip() == token
