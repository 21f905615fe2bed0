"""Log lines, as a daemon's process writes them to standard error."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import asyncio, logging, sys
import structlog
from rawblockd.logs import configure_logs, set_log_level
from rawblockd.settings import LogFormat, LogLevel
configure_logs(LogLevel.INFO, LogFormat(sys.argv[1]))
log = structlog.stdlib.get_logger("rawblockd")
engine = logging.getLogger("rawblockd.storage")
log.info("ready", entries=3)
log.debug("unseen")
engine.warning("partial recovery", extra={"fields": {"skipped": 2, "key": b"\\xff\\n", "event": "not this"}})
logging.getLogger("uvicorn.error").info("Started server process")
logging.getLogger("uvicorn.error").error("Exception in ASGI application\\n")
try:
    raise asyncio.CancelledError
except asyncio.CancelledError:
    logging.getLogger("uvicorn.error").error("cut off", exc_info=True)
set_log_level(LogLevel.ERROR)
log.warning("unseen too")
engine.warning("unseen too")
set_log_level(LogLevel.DEBUG)
log.debug("seen", step="now")
raise LookupError("a bug")
"""


def lines(log_format: str) -> list[str]:
    result = subprocess.run([sys.executable, "-c", SCRIPT, log_format], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_json_lines() -> None:
    records = [json.loads(line) for line in lines("json")]
    assert [record["event"] for record in records] == [
        "ready",
        "partial recovery",
        "Exception in ASGI application",
        "seen",
        "stopped by an unexpected error",
    ]
    ready, partial, _, seen, bug = records
    assert (ready["level"], ready["logger"], ready["entries"]) == ("info", "rawblockd", 3)
    assert ready["timestamp"].endswith("Z")
    assert (partial["level"], partial["logger"], partial["skipped"]) == ("warning", "rawblockd.storage", 2)
    assert partial["key"] == repr(b"\xff\n")
    assert seen["step"] == "now"
    assert bug["level"] == "critical"
    assert "LookupError: a bug" in bug["exception"]


def test_console_lines() -> None:
    text = "\n".join(lines("console"))
    assert "ready" in text
    assert "entries=3" in text
    assert "skipped=2" in text
    assert "unseen" not in text
    assert "cut off" not in text
    assert "\x1b" not in text, "no colours where nobody sees them"
    assert text.endswith("LookupError: a bug")
