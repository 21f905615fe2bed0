"""One bash that is given a command at a time, as a person would, and what it prints."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from pathlib import Path

COMMAND_SECONDS = 60.0


class Shell:
    """A context manager that ends the shell and whatever it left running in the background."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._count = 0

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_error: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def run(self, command: str) -> str:
        """What the command printed, standard error with it. What it starts in the background goes on."""
        self._count += 1
        mark = f"== end of command {self._count} =="
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\nprintf '%s\\n' '{mark}'\n".encode())
        self._process.stdin.flush()
        return self._read_until(f"{mark}\n", command)

    def _read_until(self, mark: str, command: str) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + COMMAND_SECONDS
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not output.endswith(mark.encode()):
                left = deadline - time.monotonic()
                assert left > 0 and selector.select(left), f"{command!r} does not end; so far:\n{output.decode()}"
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                assert data, f"the shell has ended in {command!r}:\n{output.decode()}"
                output += data
        return output.decode().removesuffix(mark)
