"""What the peers need: Debian packages where they are missing, and a Python environment of their own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLER = ROOT / "tests" / "install_packages.sh"
REQUIREMENTS = Path(__file__).parent / "peers" / "requirements.txt"
OPTIONAL = ("lmcache-rust-raw-block-io==0.5.7rc2",)
"""Without these the bench runs too, and says that they are missing."""
DEBIAN = ("fio", "gcc", "libc6-dev", "nginx", "redis-server", "memcached", "util-linux", "iproute2")
TIMEOUT_SECONDS = 900


class PackagesMissing(Exception):
    pass


def install_debian(packages: tuple[str, ...] = DEBIAN) -> None:
    """Raises ``PackagesMissing``."""
    done = subprocess.run(
        [str(INSTALLER), *packages], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise PackagesMissing(done.stderr.strip())


def peers_python(folder: Path) -> Path:
    """Python with the peers' packages; the environment is made anew if the list has changed."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + " ".join(OPTIONAL).encode()).hexdigest()
    python, mark = folder / "bin" / "python", folder / ".ready"
    if mark.exists() and mark.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    _run([*install, "--requirement", str(REQUIREMENTS)])
    for requirement in OPTIONAL:
        # Whoever measures it finds out, and says so.
        subprocess.run([*install, requirement], capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    mark.write_text(wanted)
    return python


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise PackagesMissing(f"{' '.join(words)}: {done.stderr.strip()[-600:]}")
