"""Imports what a daemon imports at its start, for the process that daemons are forked from."""

from rawblockd import lifecycle, logs
from rawblockd.command_line import serve

__all__ = ["lifecycle", "logs", "serve"]
