"""The daemon on a device that fails now and then: ``python -m rawblockd.torture.faulty_server --fault-seed S …``.

The other flags are those of ``serve`` that the kit uses. Nothing of it is a setting of the daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys

import uvloop

from rawblockd.entrance import Entrance
from rawblockd.lifecycle import Daemon
from rawblockd.logs import configure_logs
from rawblockd.settings import Settings
from rawblockd.settings_sources import load_settings
from storage.device.interface import BlockDevice
from storage.torture.faulty_device import FaultRates, FaultyDevice


class FaultyDaemon(Daemon):
    """A daemon that sees its device through the faults drawn from a seed."""

    fault_seed = ""

    async def _serve_device(self, entrance: Entrance, device: BlockDevice) -> None:
        faulty = FaultyDevice(device, self.fault_seed, FaultRates())
        try:
            await super()._serve_device(entrance, faulty)
        finally:
            await faulty.stop()


def serve(daemon: type[Daemon], flags: dict[str, str]) -> int:
    """Run such a daemon until a signal; the exit code. ``flags`` are settings by name."""
    load = functools.partial(load_settings, flags, None)
    settings: Settings = load()
    configure_logs(settings.log_level, settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(daemon(settings, load).run())


def flags_of(parser: argparse.ArgumentParser, words: list[str]) -> dict[str, str]:
    """The settings among the words of a command line, as text."""
    for name in ("device", "uds", "buffer-bytes", "eviction", "log-format"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--scrub-bytes-per-second")
    return {name: value for name, value in vars(parser.parse_args(words)).items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault-seed", required=True)
    flags = flags_of(parser, sys.argv[1:])
    FaultyDaemon.fault_seed = flags.pop("fault_seed")
    sys.exit(serve(FaultyDaemon, flags))


if __name__ == "__main__":
    main()
