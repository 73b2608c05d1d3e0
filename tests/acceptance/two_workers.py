"""Two workers: one is killed, one is stopped and goes on as a zombie, one name is used twice, a third joins and leaves."""

from __future__ import annotations

import os
import signal
import time

from schemas.limits import SESSION_TIMEOUT_MS
from streams.process.child import Child
from tests.acceptance.ground import Ground, Watch
from tests.acceptance.registry import Checks, line

FILES = 8
STALL_S_MAX = SESSION_TIMEOUT_MS / 1000 + 15
STOPPED_S = 30.0
PROMISE = "Two workers on 8 files of 5,000 rows"
JOINS_MAX = 8
"""Assignments of one worker's core in one line; more would be a ping-pong."""


class _Load:
    """Eight files on two workers, and what must come of it."""

    def __init__(self, ground: Ground, name: str, *, rate: int | None = None) -> None:
        rows = ground.size(5_000, 500)
        self.rows = FILES * rows
        self.inputs = [
            ground.payments(rows, name=f"two_{rows}_{number}.csv", seed=number) for number in range(1, FILES + 1)
        ]
        self.expected = ground.undisturbed(self.inputs)
        self.app = ground.app(name)
        self.app.provider(*(("--rate", str(rate)) if rate else ()))
        self.workers = {name: self.start(name) for name in ("a", "b")}
        self.ids = [self.app.submit(path) for path in self.inputs]
        self.watch = Watch(self.app, self.ids)

    def start(self, name: str, *, state: str | None = None, wait: bool = True) -> Child:
        """Start a worker with a state directory of its own."""
        return self.app.worker(name, state_dir=self.app.folder / f"state-{state or name}", wait=wait)

    def finish(self, checks: Checks, what: str, *, patience_s: float = 240) -> None:
        """Wait for the end and judge it."""
        told = self.app.wait(self.ids, timeout_s=patience_s)
        stall_s = self.watch.stop()
        held, figures = self.app.judge(self.rows, self.inputs, told, self.expected)
        checks.that(f"{what}: nothing lost or doubled", held, figures)
        checks.that(
            f"{what}: no execution stands still for more than session timeout + 15 s",
            stall_s <= STALL_S_MAX,
            f"{stall_s:.1f} s of {STALL_S_MAX:.0f} s",
        )

    def reach(self, share: float) -> None:
        """Wait until about so much of the work is done."""
        self.app.reach(int(share * self.rows * 3))


def _ended(child: Child, within_s: float) -> int | None:
    """A process's exit code, or None while it runs."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            child.check()
        except Exception:
            return child.wait(5)
        time.sleep(0.1)
    return None


@line("two_workers", f"{PROMISE}; kill -9 one without restarting it: the other finishes everything")
def one_dies(ground: Ground, checks: Checks) -> None:
    """The partitions of the dead one move after the session timeout."""
    load = _Load(ground, "dies")
    load.reach(0.3)
    load.app.kill(load.workers["a"])
    load.finish(checks, "one killed")


@line("two_workers", f"{PROMISE}; SIGSTOP one for 30 s, then SIGCONT: the zombie writes nothing twice")
def one_sleeps(ground: Ground, checks: Checks) -> None:
    """Its partitions have an owner when it wakes."""
    load = _Load(ground, "sleeps")
    load.reach(0.3)
    zombie = load.workers["a"]
    os.kill(zombie.pid, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
    finally:
        os.kill(zombie.pid, signal.SIGCONT)
    load.finish(checks, "one stopped for 30 s")
    code = _ended(zombie, 15)
    said = load.app.logged("worker-a")
    if code is None:
        again = ground.payments(200, name="again_200.csv", seed=77)
        others = [ground.payments(200, name=f"again_200_{number}.csv", seed=77 + number) for number in range(1, 12)]
        ids = [load.app.submit(path) for path in (again, *others)]
        told = load.app.wait(ids, timeout_s=60)
        checks.that(
            "the zombie recovers by itself",
            all(reply.status == "SUCCEEDED" for reply in told.values()),
            f"{len(ids)} further files were paid by both",
        )
    else:
        checks.that(
            "the zombie exits with a clear error",
            code == 1 and "instance" in said and "Traceback" not in said,
            f"exit code {code}: {said.strip().splitlines()[-1][:200] if said.strip() else 'nothing'}",
        )
    fences = sum(load.app.logged(f"worker-{name}").count("fenced") for name in ("a", "b"))
    checks.that("no ping-pong of fencing", fences <= JOINS_MAX, f"{fences} lines about fencing in both logs")


@line("two_workers", f"{PROMISE}; a second process under the same instance name")
def one_name_twice(ground: Ground, checks: Checks) -> None:
    """The newest wins, the older exits with a clear error; the state directory of one host refuses a second process at once."""
    load = _Load(ground, "twice", rate=ground.size(4_000, 800))
    load.reach(0.2)
    same_disk = load.start("a", wait=False)
    code = _ended(same_disk, 20)
    said = load.app.logged("worker-a")
    checks.that(
        "with the same state directory it exits at once and fences nobody",
        code not in {None, 0} and "state" in said and _ended(load.workers["a"], 1) is None,
        f"exit code {code}: {said.strip().splitlines()[-1][:200] if said.strip() else 'nothing'}",
    )
    load.start("a", state="elsewhere")
    code = _ended(load.workers["a"], 30)
    said = load.app.logged("worker-a")
    checks.that(
        "from another disk the newest wins, the older exits with a clear error",
        code == 1 and "another process runs under this instance name" in said,
        f"exit code {code}",
    )
    load.finish(checks, "two of one name")
    checks.that(
        "no ping-pong of fencing", said.count("fenced") <= JOINS_MAX, f"{said.count('fenced')} lines about fencing"
    )


@line("two_workers", f"{PROMISE}; a third worker joins and leaves")
def one_visits(ground: Ground, checks: Checks) -> None:
    """It takes partitions of both and gives them back."""
    load = _Load(ground, "visits", rate=ground.size(4_000, 800))
    load.reach(0.15)
    third = load.start("c")
    load.reach(0.35)
    third.end()
    load.finish(checks, "a third came and went")
