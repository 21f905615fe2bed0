"""``rawblockd top`` against a real daemon: driven by textual's pilot, and once in a real terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.widgets import Static

from rawblockd.command_line.daemon_client import Target
from rawblockd.errors import ExtraMissing
from rawblockd.top.screen import TopApp
from tests.support.daemon_process import DaemonProcess, clean_environment

DEADLINE_SECONDS = 30.0
INTERVAL_SECONDS = 0.1
SMALL = (80, 24)


@contextmanager
def daemon_at(path: Path, port: int = 0) -> Iterator[DaemonProcess]:
    flags = ["--device", str(path / "cache.img"), "--create", "--size", "64MiB"]
    flags += ["--port", str(port)] if port else []
    with DaemonProcess(path / f"log {port}", *flags) as process:
        process.wait_ready()
        yield process


def app_of(port: int) -> TopApp:
    return TopApp(Target(f"http://127.0.0.1:{port}"), INTERVAL_SECONDS)


def shown(app: TopApp) -> str:
    """Head and panel, as text."""
    return "\n".join(str(app.query_one(name, Static).content) for name in ("#head", "#lines"))


async def until(app: TopApp, condition: Callable[[str], bool]) -> str:
    """The screen once it says so."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition(shown(app)):
        assert time.monotonic() < deadline, shown(app)
        await asyncio.sleep(0.02)
    return shown(app)


async def put(process: DaemonProcess, path: str, body: bytes) -> None:
    code, answer = await asyncio.to_thread(process.request, "PUT", path, body)
    assert code in (201, 204), answer


async def test_what_it_shows_on_a_small_terminal(tmp_path: Path) -> None:
    """State, rates, latency, capacity, journal, device and events, each line within 80 columns."""
    with daemon_at(tmp_path) as process:
        app = app_of(process.port)
        async with app.run_test(size=SMALL) as pilot:
            await until(app, lambda text: text.startswith("READY") and "nothing needs an operator" in text)
            for number in range(20):
                await put(process, f"/v1/kv/tenant/key{number}", b"x" * 100)
                await asyncio.to_thread(process.get, f"/v1/kv/tenant/key{number}")
            text = await until(app, lambda text: "20 entries" in text and "tenant key19" in text)
            for word in ("requests", "hit ratio", "latency", "capacity", "journal", "checkpoint", "device", "holds"):
                assert word in text
            assert all(len(line) <= SMALL[0] for line in text.splitlines())
            await pilot.press("right")
            text = await until(app, lambda text: "slot class" in text)
            assert "tenant" in text
            await pilot.press("right")
            text = await until(app, lambda text: "checkpoint copies" in text)
            assert str(tmp_path / "cache.img") in text
            await pilot.press("tab")
            text = await until(app, lambda text: "stored" in text and "key0" in text)
            assert text.count("stored") == 20
            await pilot.press("right")
            await until(app, lambda text: "hit ratio" in text)
            await pilot.press("left")
            await until(app, lambda text: text.count("stored") == 20)
            await pilot.press("q")
        assert app.return_code == 0


async def test_rates_are_those_of_what_happens(tmp_path: Path) -> None:
    with daemon_at(tmp_path) as process:
        await put(process, "/v1/kv/n/key", b"x")
        app = app_of(process.port)
        async with app.run_test(size=SMALL):
            await until(app, lambda text: "gets 0/s" in text)
            seen = asyncio.Event()

            async def read() -> None:
                while not seen.is_set():
                    await asyncio.to_thread(process.get, "/v1/kv/n/key")
                    await asyncio.to_thread(process.get, "/v1/kv/n/missing")

            reading = asyncio.create_task(read())
            unknown = ("gets 0/s", "gets -", "get p50 -", "hit ratio   -")
            await until(app, lambda text: not any(words in text for words in unknown))
            seen.set()
            await reading


async def test_paused_it_stands_still(tmp_path: Path) -> None:
    with daemon_at(tmp_path) as process:
        app = app_of(process.port)
        async with app.run_test(size=SMALL) as pilot:
            await until(app, lambda text: "READY" in text)
            await pilot.press("p")
            await until(app, lambda text: "PAUSED" in text)
            before = shown(app)
            await put(process, "/v1/kv/n/while-paused", b"x")
            await until(app, lambda _: process.status()["capacity"]["slots"]["live"] == 1)
            assert shown(app) == before
            await pilot.press("p")
            await until(app, lambda text: "PAUSED" not in text and "1 entries" in text)


async def test_while_the_daemon_is_away_it_says_so_and_goes_on(tmp_path: Path) -> None:
    """It restarts: the last picture stays with its age, then the new one comes, and events go on without a gap."""
    with daemon_at(tmp_path) as first:
        port = first.port
        await put(first, "/v1/kv/n/before", b"x")
        app = app_of(port)
        async with app.run_test(size=SMALL):
            await until(app, lambda text: "n before" in text)
            assert await asyncio.to_thread(first.stop) == 0
            text = await until(app, lambda text: text.startswith("AWAY"))
            assert "No daemon answers" in text
            assert "old" in text
            assert "n before" in text
            with daemon_at(tmp_path, port) as second:
                await until(app, lambda text: text.startswith("READY"))
                await put(second, "/v1/kv/n/after", b"x")
                text = await until(app, lambda text: "n after" in text)
                assert "missed" not in text


async def test_a_daemon_that_refuses_is_shown_with_its_words(tmp_path: Path) -> None:
    """What answers there is no rawblockd: no traceback, no end."""
    server = await asyncio.start_server(_refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    app = app_of(port)
    async with app.run_test(size=SMALL):
        text = await until(app, lambda text: text.startswith("AWAY"))
        assert "refused" in text
    server.close()
    await server.wait_closed()


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 418 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
    await writer.drain()
    writer.close()


def test_in_a_real_terminal_without_colour(tmp_path: Path) -> None:
    """tmux: what it draws at 80x24, that keys arrive, and that it leaves the terminal in order."""
    tmux = shutil.which("tmux")
    assert tmux is not None
    with daemon_at(tmp_path) as process:
        process.request("PUT", "/v1/kv/n/a-key", b"x")
        environment = clean_environment(NO_COLOR="1", TERM="xterm", TMUX_TMPDIR=str(tmp_path))
        environment.pop("TMUX", None)

        def run(*words: str) -> str:
            command = [tmux, "-L", "top", "-f", "/dev/null", *words]
            return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

        def wait_for(condition: Callable[[str], bool]) -> str:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not condition(text := run("capture-pane", "-p", "-t", "top")):
                assert time.monotonic() < deadline, text
                time.sleep(0.05)
            return text

        root = Path(__file__).parents[2]
        top = f"{sys.executable} -m rawblockd top --url http://127.0.0.1:{process.port} --interval 0.2"
        run("new-session", "-d", "-s", "top", "-x", "80", "-y", "24", "-c", str(root), "sh")
        try:
            run("send-keys", "-t", "top", f"{top}; echo code $?", "Enter")
            wait_for(lambda text: "READY" in text and "n a-key" in text and "q Quit" in text)
            run("send-keys", "-t", "top", "Right")
            wait_for(lambda text: "slot class" in text)
            run("resize-window", "-t", "top", "-x", "50", "-y", "12")
            wait_for(lambda text: "READY" in text and "slot class" in text)
            run("send-keys", "-t", "top", "q")
            wait_for(lambda text: "code 0" in text and "READY" not in text)
        finally:
            run("kill-server")


def test_without_textual_it_says_how_to_install_it(tmp_path: Path) -> None:
    """An installation without the extra: as if textual were not there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'textual' else found(name, *rest)\n"
    )
    root = str(Path(__file__).parents[2])
    environment = clean_environment(PYTHONPATH=os.pathsep.join([str(tmp_path), root]))
    result = subprocess.run(
        [sys.executable, "-m", "rawblockd", "top"], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == ExtraMissing.exit_code
    assert "pip install 'rawblockd[top]'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("url", ["ftp://x", "http://x/path", "nonsense"])
def test_a_wrong_url_is_refused_before_the_screen_is_taken(url: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rawblockd", "top", "--url", url], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("error:")
