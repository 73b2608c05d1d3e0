"""SIGTERM and SIGINT ask a process to end, whatever its main thread is at."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

TIMEOUT_S = 100.0
ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_while_the_main_thread_holds_the_events_lock_sets_it(name: str) -> None:
    """The main thread spends its life in `stop.wait`, so a signal often finds it there."""
    done = ran(f"""
        import os, signal
        from streams.process.signals import stop_on_signals
        stop = stop_on_signals()
        with stop._cond:
            os.kill(os.getpid(), signal.{name})
            for _ in range(1000):
                pass
        assert stop.wait(60)
        print("asked to stop")
    """)
    assert (done.returncode, done.stdout) == (0, "asked to stop\n"), done.stderr


def test_a_second_signal_ends_the_process_at_once() -> None:
    done = ran("""
        import os, signal
        from streams.process.signals import stop_on_signals
        stop = stop_on_signals()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)
        stop.clear()
        stop.wait(60)
    """)
    assert done.returncode == -15, (done.returncode, done.stderr)
