"""Logging: everything goes to standard error through one structlog formatter, as lines or as JSON.

The engine and the libraries log with the standard library; a record's ``extra={"fields": {...}}`` become
key-values of the line. The process logs with ``structlog.stdlib.get_logger``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from types import TracebackType

import structlog
from structlog.types import EventDict, Processor

from rawblockd.settings import LogFormat, LogLevel

LEVELS = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


def configure_logs(level: LogLevel, log_format: LogFormat) -> None:
    """Route all logging through the formatter. Call once; later changes of level are ``set_log_level``."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _record_fields,
    ]
    last: list[Processor]
    if log_format is LogFormat.JSON:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        # Plain tracebacks: the boxed ones of the default print the values of local variables, keys among them.
        last = [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.root.handlers = [handler]
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    sys.excepthook = _log_uncaught
    logging.getLogger("uvicorn.error").addFilter(_not_cancelled)
    set_log_level(level)


def set_log_level(level: LogLevel) -> None:
    number = LEVELS[level]
    logging.root.setLevel(number)
    # The server's own INFO lines repeat what the lifecycle logs; asyncio's DEBUG lines are about its selector.
    quiet = logging.WARNING if number > logging.DEBUG else logging.INFO
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(max(number, quiet))


def _record_fields(_logger: object, _method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if isinstance(event.get("event"), str):
        event["event"] = event["event"].rstrip()
    fields = getattr(record, "fields", None)
    if isinstance(fields, dict):
        for name, value in fields.items():
            event.setdefault(name, value)
    return event


def _not_cancelled(record: logging.LogRecord) -> bool:
    """False for uvicorn's traceback of a request that was cut off on purpose at the end of the drain time."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("rawblockd").critical("stopped by an unexpected error", exc_info=(kind, error, trace))
