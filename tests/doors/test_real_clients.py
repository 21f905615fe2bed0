"""The clients themselves: what one machine has built, another gets from the daemon, also after a restart."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doors.build_tools import Ccache, bazel, gradle, sccache
from tests.doors.conftest import ALL_DOORS
from tests.http.daemon import Daemon
from tests.support.daemon_process import DaemonProcess

SLOW_TO_START = pytest.mark.timeout(300)
"""A tool that starts a Java machine may take its time while other tests run."""


@contextmanager
def _daemon(folder: Path, name: str) -> Iterator[DaemonProcess]:
    """A daemon on a device that stays; its end is an ordinary one."""
    arguments = ["--device", str(folder / "cache.img"), "--create", "--size", "64MiB", *ALL_DOORS]
    with DaemonProcess(folder / f"{name}.log", *arguments) as running:
        running.wait_ready()
        yield running
        assert running.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("layout", ["subdirs", "flat", "bazel"])
def test_ccache_in_each_layout(open_doors: Daemon, tmp_path: Path, layout: str) -> None:
    tool = Ccache(tmp_path, f"{open_doors.url}/ccache|layout={layout}")
    built = tool.compile("first")
    first = tool.statistics("first")
    assert (first["cache_miss"], first["remote_storage_write"], first["remote_storage_error"]) == (1, 2, 0)
    assert tool.compile("second") == built
    second = tool.statistics("second")
    assert (second["cache_miss"], second["remote_storage_hit"], second["remote_storage_error"]) == (0, 1, 0)


def test_ccache_after_a_restart_of_the_daemon(tmp_path: Path) -> None:
    with _daemon(tmp_path, "before") as daemon:
        built = Ccache(tmp_path, f"http://127.0.0.1:{daemon.port}/ccache").compile("first")
    with _daemon(tmp_path, "after") as daemon:
        tool = Ccache(tmp_path, f"http://127.0.0.1:{daemon.port}/ccache")
        assert tool.compile("second") == built
        statistics = tool.statistics("second")
    assert (statistics["cache_miss"], statistics["remote_storage_hit"]) == (0, 1)


def test_sccache_after_a_restart_of_its_server(open_doors: Daemon, tmp_path: Path) -> None:
    settings = {"SCCACHE_WEBDAV_ENDPOINT": f"{open_doors.url}/sccache", "SCCACHE_WEBDAV_KEY_PREFIX": "team/a b"}
    with sccache(tmp_path, **settings) as tool:
        built = tool.compile()
        statistics = tool.statistics()
        assert statistics["cache_misses"]["counts"] == {"C/C++": 1}
        assert (statistics["cache_write_errors"], statistics["cache_writes"]) == (0, 1)
    with sccache(tmp_path, **settings) as tool:
        assert tool.compile() == built
        statistics = tool.statistics()
        assert statistics["cache_hits"]["counts"] == {"C/C++": 1}
        assert statistics["cache_read_errors"] == 0


@SLOW_TO_START
def test_bazel_in_another_checkout(open_doors: Daemon, tmp_path: Path) -> None:
    cache = f"--remote_cache={open_doors.url}/bazel"
    first = bazel(tmp_path, "first", cache)
    assert "remote cache hit" not in first
    assert "WARNING: Remote Cache" not in first
    assert "1 remote cache hit" in bazel(tmp_path, "second", cache)


@SLOW_TO_START
def test_gradle_in_another_checkout(open_doors: Daemon, tmp_path: Path) -> None:
    url = f"{open_doors.url}/gradle/"
    first = gradle(tmp_path, "first", url)
    assert "FROM-CACHE" not in first
    assert "1 executed" in first
    assert ":make FROM-CACHE" in gradle(tmp_path, "second", url)
