"""kill -9 of the worker at random moments; the same slot restarts and goes on."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from tests.acceptance.ground import App, Ground, Watch
from tests.acceptance.registry import Checks, line

TAKEOVER_S_MAX = 5.0


def _run(app: App, path: Path) -> tuple[str, float]:
    """Provider and worker up, the file submitted; returns the id and when."""
    app.provider()
    app.worker("w1")
    return app.submit(path), time.monotonic()


def _restart(app: App) -> float:
    """kill -9 and start again under the same name; returns the seconds from the restart to joined and restored."""
    worker = next(child for child in reversed(app.children) if child.name == "worker-w1")
    app.kill(worker)
    began_s = time.monotonic()
    app.worker("w1")
    return time.monotonic() - began_s


@line(
    "kill",
    "kill -9 of the worker at random moments of a 20,000-row run, restarted with the same instance name, 10 times",
)
def kill(ground: Ground, checks: Checks) -> None:
    """Ten runs with one kill each, then one run with ten."""
    rows = ground.size(20_000, 3_000)
    path = ground.payments(rows)
    chance = random.Random(ground.seed)
    app = ground.app("undisturbed")
    name, began_s = _run(app, path)
    app.wait([name])
    usual_s = time.monotonic() - began_s
    expected = {f"{path.name}.out": (app.output / f"{path.name}.out").read_bytes()}
    app.close()
    takeovers: list[float] = []
    faults: list[str] = []
    rounds = ground.size(10, 2)
    for number in range(rounds):
        app = ground.app("kill")
        name, began_s = _run(app, path)
        after_s = chance.uniform(0, usual_s)
        watch = Watch(app, [name])
        time.sleep(max(0.0, began_s + after_s - time.monotonic()))
        takeovers.append(_restart(app))
        told = app.wait([name])
        stall_s = watch.stop()
        held, figures = app.judge(rows, [path], told, expected)
        checks.say(
            f"      kill {number + 1} after {after_s:.2f} s: ready in {takeovers[-1]:.2f} s, still {stall_s:.2f} s, {figures}"
        )
        if not held:
            faults.append(f"killed after {after_s:.2f} s: {figures}")
        app.close()
    checks.that(
        f"{rounds} runs of {rows} rows (an undisturbed one takes {usual_s:.1f} s), one kill each: one request and one output a row",
        not faults,
        "; ".join(faults) or "the files equal the undisturbed run's",
    )
    app = ground.app("kills")
    name, _ = _run(app, path)
    kills = 0
    while kills < rounds and not app.ended([name]):
        time.sleep(chance.uniform(0, usual_s / 6))
        takeovers.append(_restart(app))
        checks.say(f"      kill {kills + 1}: ready in {takeovers[-1]:.2f} s")
        kills += 1
    held, figures = app.judge(rows, [path], app.wait([name]), expected)
    checks.that(f"one run of {rows} rows with {kills} kills: one request and one output a row", held, figures)
    app.close()
    checks.that(
        f"takeover within {TAKEOVER_S_MAX:g} s of the restart",
        max(takeovers) <= TAKEOVER_S_MAX,
        f"{min(takeovers):.2f} to {max(takeovers):.2f} s from process start to joined and restored, "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs",
    )


@line("kill", "the same with the input file deleted after the last dispatch")
def kill_without_input(ground: Ground, checks: Checks) -> None:
    """From the last dispatch on the source is never opened again."""
    rows = ground.size(20_000, 3_000)
    path = ground.payments(rows, name=f"deleted_{rows}.csv")
    content = path.read_bytes()
    expected = ground.undisturbed([path])
    app = ground.app("deleted")
    app.provider("--delay-ms", "3000")
    app.worker("w1")
    name = app.submit(path)
    app.until(app.source_ended, "the last dispatch", every_s=0.3)
    path.unlink()
    try:
        takeover_s = _restart(app)
        told = app.wait([name])
        held, figures = app.judge(rows, [path], told, expected)
    finally:
        path.write_bytes(content)
    checks.that("it finishes from its rows", held, figures)
    checks.that(f"takeover within {TAKEOVER_S_MAX:g} s", takeover_s <= TAKEOVER_S_MAX, f"{takeover_s:.2f} s")
