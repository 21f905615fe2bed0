"""A device whose logical blocks are larger than the daemon's own is refused before anything is read (D5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import storage.device.probe
from rawblockd.device_preparation import prepare_device
from rawblockd.settings_sources import load_settings
from storage.device.opening import open_device
from storage.device.probe import probe
from storage.errors import BlocksTooLarge
from storage.formatting import format_device
from storage.offline.info import info

SIZE_BYTES = 64 << 20
OPENERS: dict[str, Callable[[str], object]] = {
    "probe": probe,
    "format": format_device,
    "format by force": lambda path: format_device(path, force=True),
    "serve": lambda path: prepare_device(load_settings({"device": path})),
    "serve --create": lambda path: prepare_device(load_settings({"device": path, "create": True, "size": SIZE_BYTES})),
    "offline": lambda path: open_device(path, write=False, exclusive=False),
    "buffered": lambda path: open_device(path, write=True, allow_buffered=True),
    "info": info,
}


@pytest.mark.parametrize("block_bytes", [8192, 65536])
@pytest.mark.parametrize("name", OPENERS)
def test_d5_blocks_that_are_too_large_are_a_refusal_and_nothing_is_written(
    name: str, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "device"
    path.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(storage.device.probe, "direct_io_alignment", lambda _fd: (4, block_bytes))
    with pytest.raises(BlocksTooLarge, match=f"{block_bytes} bytes"):
        OPENERS[name](str(path))
    assert path.read_bytes() == bytes(1 << 20)
    assert (BlocksTooLarge.code, BlocksTooLarge.exit_code) == ("blocks_too_large", 17)
    assert not BlocksTooLarge.restart_helps
