"""A daemon forked from a process that has imported everything already: what starts hundreds of times starts sooner.

It is a process of its own, with the arguments, the environment and the log of one that was executed, and it gets the
same signals; only the interpreter's start and the imports, nine tenths of a start, are not repeated.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.daemon_process import DaemonProcess, Running, clean_environment

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.support.daemon_imports"])


class ForkedDaemon(DaemonProcess):
    """``rawblockd serve`` as ``DaemonProcess`` has it."""

    def _launch(self, arguments: tuple[str, ...], environment: dict[str, str]) -> Running:
        self._log_path.write_bytes(b"")
        return ForkedProcess(self.module, self._log_path, arguments, clean_environment(**environment))


class ForkedProcess:
    """The part of ``subprocess.Popen`` that is used of a daemon's process."""

    def __init__(self, module: str, log_path: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        given = (module, str(log_path), arguments, environment)
        self._process = _processes.Process(target=_run, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(module: str, log_path: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    """What ``python -m module serve ...`` does, in a process that was forked."""
    os.environ.clear()
    os.environ.update(environment)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
