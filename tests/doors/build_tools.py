"""The build tools themselves, each with a home, a configuration and a local cache of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 120.0
SOURCE = "int answer(int question) { return question * 42; }\n"

_OWN = ("CCACHE_", "SCCACHE_", "GRADLE_", "BAZEL_", "RAWBLOCKD_", "JAVA_TOOL_OPTIONS")
_QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""A build this short is over before it is worth compiling the tool."""
_PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}


def environment(home: Path, **extra: str) -> dict[str, str]:
    """The environment without anybody's settings for the tools, and without proxies: the daemon is on this machine."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(_OWN) and name.upper() not in _PROXIES
    }
    return kept | {"HOME": str(home), "no_proxy": "*"} | extra


def run(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    """The output of a command that must succeed."""
    result = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, f"{command}: {output}"
    return output


class Ccache:
    """ccache in front of gcc. ``local`` is its cache on this machine: a new folder is another machine."""

    def __init__(self, folder: Path, remote_storage: str) -> None:
        self._folder = folder
        self._remote_storage = remote_storage
        (folder / "answer.c").write_text(SOURCE)

    def compile(self, local: str) -> bytes:
        """Compile the program; the object file."""
        target = self._folder / "answer.o"
        target.unlink(missing_ok=True)
        run(["ccache", "gcc", "-c", "answer.c", "-o", "answer.o"], self._folder, self._variables(local))
        return target.read_bytes()

    def statistics(self, local: str) -> dict[str, int]:
        lines = run(["ccache", "--print-stats"], self._folder, self._variables(local)).splitlines()
        return {name: int(value) for name, _, value in (line.partition("\t") for line in lines)}

    def entries(self, local: str) -> list[bytes]:
        """What lies in the local cache, which is what the remote one was sent."""
        files = [path for path in (self._folder / local).rglob("*") if path.is_file() and path.name[-1] in "RM"]
        return [path.read_bytes() for path in files]

    def _variables(self, local: str) -> dict[str, str]:
        return environment(
            self._folder,
            CCACHE_DIR=str(self._folder / local),
            CCACHE_CONFIGPATH=str(self._folder / "ccache.conf"),
            CCACHE_REMOTE_STORAGE=self._remote_storage,
        )


class Sccache:
    """sccache and its server of its own, without a cache on this machine."""

    def __init__(self, folder: Path, socket: Path, **settings: str) -> None:
        self._program = str(Path(sys.executable).parent / "sccache")
        self._folder = folder
        self._variables = environment(folder, SCCACHE_SERVER_UDS=str(socket), **settings)
        (folder / "answer.c").write_text(SOURCE)

    def compile(self) -> bytes:
        target = self._folder / "answer.o"
        target.unlink(missing_ok=True)
        run([self._program, "gcc", "-c", "answer.c", "-o", "answer.o"], self._folder, self._variables)
        return target.read_bytes()

    def statistics(self) -> dict[str, Any]:
        text = run([self._program, "--show-stats", "--stats-format", "json"], self._folder, self._variables)
        statistics = json.loads(text)["stats"]
        assert isinstance(statistics, dict)
        return statistics

    def start(self) -> None:
        """Returns when the server has looked at its storage and listens."""
        run([self._program, "--start-server"], self._folder, self._variables)

    def stop(self) -> None:
        """Returns when the server takes no more requests."""
        run([self._program, "--stop-server"], self._folder, self._variables)


@contextmanager
def sccache(folder: Path, **settings: str) -> Iterator[Sccache]:
    """A running one. Its socket is elsewhere, since the path of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="sccache-") as place:
        tool = Sccache(folder, Path(place) / "socket", **settings)
        tool.start()
        try:
            yield tool
        finally:
            tool.stop()


def bazel(folder: Path, output_base: str, *flags: str) -> str:
    """Build the target ``//:hello`` with nothing but what ``output_base`` has; what Bazel says."""
    (folder / "WORKSPACE").touch()
    (folder / "BUILD").write_text('genrule(name = "hello", outs = ["hello.txt"], cmd = "echo hello > $@")\n')
    # Debian's Bazel is told by the system's settings where its parts are.
    command = [
        "bazel",
        "--batch",
        f"--host_jvm_args={_QUICK_JAVA}",
        "--nohome_rc",
        "--noworkspace_rc",
        f"--output_user_root={folder / 'bazel'}",
    ]
    command += [f"--output_base={folder / output_base}", "build", "--color=no", "--curses=no"]
    return run([*command, "--spawn_strategy=local", *flags, "//:hello"], folder, environment(folder))


_BUILD_GRADLE = """\
@CacheableTask
class Make extends DefaultTask {
  @Input String text = "hello"
  @OutputFile File out = project.file("build/out.txt")
  @TaskAction void make() { out.text = text * 1000 }
}
task make(type: Make)
"""
_SETTINGS_GRADLE = """\
rootProject.name = "probe"
buildCache {{
  local {{ enabled = false }}
  remote(HttpBuildCache) {{
    url = "{url}"
    push = true
    credentials {{ username = "gradle"; password = "secret" }}
  }}
}}
"""


def gradle(folder: Path, project: str, url: str) -> str:
    """Run the task ``make`` in a new checkout of the project; what Gradle says."""
    checkout = folder / project / "probe"
    checkout.mkdir(parents=True)
    (checkout / "build.gradle").write_text(_BUILD_GRADLE)
    (checkout / "settings.gradle").write_text(_SETTINGS_GRADLE.format(url=url))
    command = ["gradle", "--no-daemon", "--build-cache", "--console=plain", "-g", str(folder / "home"), "make"]
    return run(command, checkout, environment(folder, JAVA_OPTS=_QUICK_JAVA))
