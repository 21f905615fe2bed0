"""The wheel, in an environment that has nothing else: built, installed, used against a daemon."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from tests.client.places import Place

SOURCE = Path(__file__).parents[2] / "clients" / "python"

SCRIPT = """
import importlib.util, sys
from rawblockd_client import Client, __version__
found = [name for name in ("rawblockd", "api", "storage", "metrics", "numpy", "aiohttp", "msgpack")
         if importlib.util.find_spec(name)]
assert not found, found
assert "site-packages" in sys.modules["rawblockd_client"].__file__
with Client(sys.argv[1]) as client:
    client.put("wheel", "key", b"value")
    assert client.get("wheel", "key") == b"value"
    assert [entry.value for entry in client.mget("wheel", ["key"])] == [b"value"]
print(__version__)
"""


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_the_wheel_works_alone(place: Place, tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(SOURCE))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))
    assert {name.partition("/")[0] for name in names} == {
        "rawblockd_client", f"{wheel.name.rpartition('-py3')[0]}.dist-info",
    }  # fmt: skip
    assert "rawblockd_client/py.typed" in names
    assert "Requires-Python: >=3.9" in metadata
    requires = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert all("extra ==" in line for line in requires), "the core depends on nothing"
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", with_pip=False)
    pip("--python", str(python), "install", "--no-index", "--no-deps", str(wheel))
    ran = subprocess.run(
        [str(python), "-I", "-c", SCRIPT, place.url], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() in wheel.name
