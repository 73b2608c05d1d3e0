"""Signals that ask the process to end."""

from __future__ import annotations

import os
import signal
import threading

_ASKING = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; a second one ends the process at once.

    Python runs a signal's function between any two instructions of the main thread, also while that holds the event's own lock: setting the
    event there would wait for ever. So it only writes a byte, and a thread that waits for the byte sets the event.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        return stop
    asked, ask = os.pipe()

    def on_signal(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.write(ask, b"!")

    def watch() -> None:
        os.read(asked, 1)
        stop.set()

    threading.Thread(target=watch, name="kawait-signals", daemon=True).start()
    for number in _ASKING:
        signal.signal(number, on_signal)
    return stop
