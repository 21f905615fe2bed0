"""The real daemon, but for one thing: every buffer is full of poison when it is handed out.

``python -m tests.crash.killer.poisoned_server serve …``. What shows the poison, on the device or in an answer, was
written by nobody (B2).
"""

from __future__ import annotations

from unittest import mock

from rawblockd.command_line import main
from tests.support.engines import PoisonedArena

if __name__ == "__main__":
    with (
        mock.patch("storage.buffers.BufferArena", PoisonedArena),
        mock.patch("storage.engine_life.BufferArena", PoisonedArena),
        mock.patch("storage.assembly.BufferArena", PoisonedArena),
    ):
        main()
