"""Stores as libraries against the engine as a library: no HTTP on either side."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.service.measuring import say
from bench.service.processes import ServerFailed
from bench.service.server import Place

APPLICATION = Path(__file__).parent / "peers" / "applications" / "in_process.py"
ENGINE_PROGRAM = Path(__file__).parent / "engine_alone.py"
LIBRARIES = ("lmdb", "lmdb, synced", "rocksdict", "diskcache", "lmcache")
ENGINE = "engine"
KEYS = {4 << 10: 8192, 64 << 10: 2048, 1 << 20: 256}
KEYS_SLOW = {4 << 10: 1024, 64 << 10: 512, 1 << 20: 128}
"""For what takes a millisecond a value."""
THREADS = 8
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class InProcess:
    """Operations per second by repetition; ``failure`` says why there are none."""

    store: str
    size: int
    put: list[float]
    get: list[float]
    failure: str = ""


def measure_in_process(place: Place, device: Path, tree: Path, runs: int, seconds: float) -> list[InProcess]:
    """``device`` is a fully written file for the engine. A library that does not work is told of, not an error."""
    began = time.monotonic()
    found: list[InProcess] = []
    for size in KEYS:
        results = {store: InProcess(store, size, [], []) for store in (ENGINE, *LIBRARIES)}
        for _ in range(runs):
            for store, result in list(results.items()):
                if result.failure:
                    continue
                try:
                    rates = _once(store, place, device, tree, size, seconds)
                except ServerFailed as failed:
                    results[store] = InProcess(store, size, [], [], str(failed))
                else:
                    result.put.append(rates["put"])
                    result.get.append(rates["get"])
        found += results.values()
    say(f"in process: {time.monotonic() - began:.0f} s")
    return found


def _once(store: str, place: Place, device: Path, tree: Path, size: int, seconds: float) -> dict[str, float]:
    folder = place.folder / "library"
    slow = store in ("diskcache", "lmdb, synced")
    numbers = [str(size), str((KEYS_SLOW if slow else KEYS)[size]), str(seconds)]
    if store == ENGINE:
        words = [sys.executable, "-P", str(ENGINE_PROGRAM), str(device), *numbers]
    else:
        words = [str(place.peers_python), str(APPLICATION), store, str(folder), *numbers, str(THREADS)]
    environment = {**os.environ, "PYTHONPATH": str(tree)} if store == ENGINE else None
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            cwd=place.folder,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise ServerFailed(f"no end within {TIMEOUT_SECONDS:.0f} s") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode:
        raise ServerFailed((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    rates: dict[str, float] = json.loads(done.stdout)
    return rates
