"""Makes the pictures of ``docs/operator-page.md``: ``python -m tests.browser.screenshots``, or ``make screenshots``.

Real daemons under a small load for a minute and a half, so that the charts have something to show.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.browser.chromium import Chromium, Page
from tests.browser.conftest import daemon_on, url_of
from tests.browser.devices import damaged_device
from tests.support.daemon_process import DaemonProcess

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LOAD_SECONDS = 90.0
SIZES = {"kv-cache": (60_000, 120_000), "embeddings": (3_000,), "artefacts": (700_000,), "features": (500, 9_000)}
QUOTAS = {"artefacts": b'{"quota_bytes": 134217728, "quota_mode": "hard"}', "features": b'{"quota_entries": 400}'}


def load(daemon: DaemonProcess, seconds: float, seed: int = 5) -> None:
    """Puts and gets of several namespaces, some of them misses, in waves."""
    rng = random.Random(seed)
    connection = daemon.connect()
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        namespace = rng.choices(list(SIZES), [6, 5, 1, 3])[0]
        path = f"/v1/kv/{namespace}/item-{rng.randrange(150 if namespace == 'artefacts' else 600):04}"
        if rng.random() < 0.35:
            connection.request("PUT", path, body=rng.randbytes(rng.choice(SIZES[namespace])))
        else:
            connection.request("GET", path)
        connection.getresponse().read()
        if int(at) % 20 > 12:
            time.sleep(rng.random() * 0.01)
    connection.close()


def shoot(page: Page, url: str, name: str, *, dark: bool = False, width: int = 1200, height: int = 1240) -> None:
    page.dress(dark=dark, width=width, height=height)
    page.open(url)
    page.wait_for(
        "!document.querySelector('.plot') || document.querySelectorAll('.plot canvas').length === 3", "no charts"
    )
    page.screenshot(IMAGES / f"operator-page-{name}.png", whole=False)
    assert page.complaints == []
    page.open("about:blank")


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Chromium(Path(folder) / "profile") as browser:
        os.chdir(folder)  # the page shows the device's path
        page = browser.new_page()
        with daemon_on(Path("cache.device"), "--create", "--size", "512MiB") as daemon:
            for namespace, settings in QUOTAS.items():
                assert daemon.request("PUT", f"/v1/namespaces/{namespace}", settings)[0] in (200, 201, 204)
            load(daemon, LOAD_SECONDS)
            shoot(page, url_of(daemon), "ready")
        damaged = Path("damaged.device")
        damaged_device(damaged, entries=200, skipped=3)
        with daemon_on(damaged) as daemon:
            shoot(page, url_of(daemon), "partial", height=980)
            shoot(page, url_of(daemon), "narrow", width=360, height=1100, dark=True)
            shoot(page, url_of(daemon) + "/operator/acknowledge", "acknowledge", width=900, height=470)
        page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
