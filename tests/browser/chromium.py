"""A headless Chromium, spoken to by the DevTools protocol over two pipes: no driver, no port, no dependency.

Messages are JSON that ends with a zero byte; Chromium reads them from descriptor 3 and writes them to 4.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import selectors
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

ANSWER_SECONDS = 30.0
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--font-render-hinting=none",
)


class DevToolsError(AssertionError):
    """The browser refused a command, or did not answer in time."""


class Chromium:
    """One browser process; ``new_page`` opens tabs in profiles of their own."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium")
        assert program is not None, "the tests of the page need the Debian package chromium"
        to_browser, self._writing = _pipe()
        self._reading, from_browser = _pipe()
        # A shell makes them 3 and 4 for the browser, whatever their numbers are here.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, program, *ARGUMENTS, f"--user-data-dir={profile}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._reading, selectors.EVENT_READ)
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._selector.close()
        os.close(self._writing)  # the browser ends with its pipe
        os.close(self._reading)
        try:
            self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def new_page(self) -> Page:
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        page.prepare()
        return page

    def forget(self, session: str, context: str) -> None:
        """Close a page and its profile."""
        self._pages.pop(session)
        self.call("Target.disposeBrowserContext", browserContextId=context)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Carry out a command; its result. Raises DevToolsError."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        self.pump(lambda: number in self._answers, f"{method} was not answered")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise DevToolsError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def pump(self, until: Callable[[], bool], otherwise: str) -> None:
        """Take in what the browser says until something is the case."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                raise DevToolsError(otherwise)
            if self._selector.select(left):
                data = os.read(self._reading, 1 << 20)
                if not data:
                    raise DevToolsError(f"{otherwise}: the browser has ended")
                *messages, self._buffer = (self._buffer + data).split(b"\0")
                for message in messages:
                    self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.note(message["method"], message["params"])


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are neither 3 nor 4."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


class Page:
    """One tab. ``complaints`` are what the console said: errors, warnings, violations of the policy, exceptions."""

    def __init__(self, browser: Chromium, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._context = context
        self._loads = 0
        self.complaints: list[str] = []
        self.requests: deque[str] = deque(maxlen=1000)

    def prepare(self) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def close(self) -> None:
        self._browser.forget(self._session, self._context)

    def note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([a.get("value", a.get("description")) for a in parameters["args"]]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{parameters['entry']['text']} ({parameters['entry'].get('url', '')})")

    # -- what a person does -------------------------------------------------------------------------------------------

    def dress(self, *, dark: bool = False, width: int = 1280, height: int = 900, reduced_motion: bool = False) -> None:
        """The reader's preferences and the size of the window."""
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def without_scripts(self) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=True)

    def open(self, url: str) -> None:
        self.load(lambda: self.call("Page.navigate", url=url))

    def load(self, action: Callable[[], object]) -> None:
        """Do something that leads to another page, and wait for it."""
        before = self._loads
        action()
        self._browser.pump(lambda: self._loads > before, "the page was not loaded")

    def press(self, key: str) -> None:
        """One key. Enter activates, as it does for a person."""
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        code = {"Enter": 13, "Tab": 9, "Space": 32}[key]
        name = " " if key == "Space" else key
        down = {"type": "keyDown", "key": name, "code": key, "windowsVirtualKeyCode": code}
        if text:
            down["text"] = text
        self.call("Input.dispatchKeyEvent", **down)
        self.call("Input.dispatchKeyEvent", **{**down, "type": "keyUp"})

    def click(self, selector: str) -> None:
        """Click where the element is, after scrolling to it."""
        box = self.evaluate(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    # -- what a test sees ---------------------------------------------------------------------------------------------

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise's too; works with the page's own scripts switched off."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """What a person reads there, spaces made plain."""
        found = self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")
        assert found is not None, f"no {selector}"
        return " ".join(str(found).split())

    def wait_for(self, expression: str, otherwise: str) -> None:
        """Until a JavaScript expression is true. Each look is a round trip; a deadline bounds them."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.02)

    def complaint(self) -> str:
        """Wait for the console to say something; it is no fault of the test then."""
        self._browser.pump(lambda: bool(self.complaints), "the console says nothing")
        return self.complaints.pop(0)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        options: dict[str, Any] = {"format": "png", "captureBeyondViewport": whole, "optimizeForSpeed": False}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))
