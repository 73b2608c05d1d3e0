"""Logs: one structured line an event on stderr, quiet when all is well, and never a secret.

Results go to stdout; what is written here is for whoever watches. Libraries that use the standard `logging` take the same way.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal

import structlog
import structlog.tracebacks

LogFormat = Literal["text", "json"]

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

REPEAT_S = 30.0
REMEMBERED_MAX = 200

_LIBRDKAFKA_LINE = "[thrd:"
_NUMBER = re.compile(r"\d+")
_SECRET_WORDS = ("token", "secret", "password", "credential", "authorization")


def configure(*, log_format: LogFormat = "text", level: str = "warning") -> None:
    """Set the process's logs up; called once by the command line, and again by nobody but tests.

    Args:
        log_format: `text` for people, `json` for machines: one object a line.
        level: The least that is written; see `LEVELS`.
    """
    threshold = LEVELS[level]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            hide_secrets,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_rendering(log_format),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=_StderrLogger,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [*(other for other in root.handlers if not isinstance(other, _Bridge)), _Bridge()]
    root.setLevel(threshold)
    # Their news is about themselves; what matters of it arrives as errors of calls.
    for noisy in ("asyncio", "aiokafka", "faust", "mode"):
        logging.getLogger(noisy).setLevel(max(threshold, logging.WARNING))


def hide_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blank every field whose name says that it is one; a last resort, as nobody hands secrets to a logger."""
    for name in event:
        if any(word in name.lower() for word in _SECRET_WORDS):
            event[name] = "***"
    return event


def _rendering(log_format: LogFormat) -> list[Any]:
    if log_format == "json":
        # Places only: the values of variables may be tokens and payloads.
        places_only = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        return [
            structlog.processors.ExceptionRenderer(places_only),
            structlog.processors.JSONRenderer(sort_keys=False, default=str),
        ]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
            pad_event_to=0,
            pad_level=False,
        )
    ]


class _StderrLogger:
    """Writes to what stderr is at that moment, a line in one call, so that threads do not tear lines."""

    def __init__(self, *_names: object) -> None:
        pass

    def msg(self, message: str) -> None:
        """Write one line; a closed stderr is nobody's problem."""
        try:
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()
        except (BrokenPipeError, ValueError):
            pass

    log = debug = info = warn = warning = error = critical = fatal = failure = exception = msg


class _Bridge(logging.Handler):
    """Passes records of the standard library's loggers on; what is said again and again is said once in `REPEAT_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        if self._is_noise(record):
            return
        logger = structlog.get_logger()
        exc_info: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        logger.log(min(record.levelno, logging.CRITICAL), record.getMessage(), **exc_info)

    def _is_noise(self, record: logging.LogRecord) -> bool:
        """A line of librdkafka's own (its clients' error callbacks say the same in words), or a repetition."""
        if _LIBRDKAFKA_LINE in record.getMessage():
            return True
        words = _NUMBER.sub("", record.getMessage())
        now_s = time.monotonic()
        if now_s - self._said_s.get(words, -REPEAT_S) < REPEAT_S:
            return True
        if len(self._said_s) > REMEMBERED_MAX:
            self._said_s.clear()
        self._said_s[words] = now_s
        return False
