"""Coroutines of the author's code, run to their end on a thread of the pool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

_local = threading.local()


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end on this thread's own event loop (made once for a thread)."""
    loop: asyncio.AbstractEventLoop | None = getattr(_local, "loop", None)
    if loop is None or loop.is_closed():
        loop = _local.loop = asyncio.new_event_loop()
    return loop.run_until_complete(coroutine)
