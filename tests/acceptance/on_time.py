"""An answer that came in time counts, whoever was away, behind or on another clock when its deadline passed."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal

from schemas.facts import BoundaryCompletionAdmitted, InteractionTimedOut
from streams.demo.provider_answers import APPROVAL, REJECT_RATE_DEFAULT, REJECTION, rejected
from streams.process.child import Child
from tests.acceptance.ground import AWAIT, App, Ground
from tests.acceptance.outside import Asked, Outside, requests_of
from tests.acceptance.registry import Checks, line

TIMEOUT_S = 15
PAST_S = 4.0
"""So long after the last deadline what was away comes back."""
SKEW_S = 30
CLOCK_TOLERANCE_MS = 2_000
RING_S_MAX = 10.0
"""A deadline that nobody answers: at most so long after its time, the gate included."""
SUSPENDING = (f"{AWAIT}.await.live=false",)
CLOCK_WARNING = re.compile(r"warn.*clock", re.IGNORECASE)

How = Literal["workers", "ingress", "open transaction"]


def decided(request: Asked) -> bytes:
    """What the mock provider decides about a payment."""
    is_rejected = rejected(str(request.payload["csvId"]), REJECT_RATE_DEFAULT)
    return bytes(REJECTION if is_rejected else APPROVAL)


class Story:
    """A file whose answers came in time while something was away."""

    def __init__(
        self,
        ground: Ground,
        name: str,
        path: Path,
        rows: int,
        *,
        how: How,
        overrides: tuple[str, ...] = (),
        skew_s: int = 0,
    ) -> None:
        self.name = name
        self.path, self.rows = path, rows
        self.app = ground.app(
            f"on-time-{name.replace(',', '').replace(' ', '-')}",
            overrides=(*overrides, f"{AWAIT}.timeout=PT{TIMEOUT_S}S"),
        )
        self._how = how
        self._altered = ("--clock-offset-s", str(skew_s)) if skew_s else ()
        self._outside: Outside | None = None
        self._execution = ""
        self.deadlines: list[int] = []
        self.rung_meanwhile = 0

    def begin(self) -> None:
        """All is asked; something goes away; all is answered in time."""
        app, apart = self.app, self._how == "ingress"
        roles = {"core": "core,continuation", "ingress": "ingress"} if apart else {"w1": "core,ingress,continuation"}
        workers = {name: self._worker(name, role) for name, role in roles.items()}
        self._execution = app.submit(self.path)
        app.until(app.source_ended, "all requests", every_s=0.1)
        if self._how != "open transaction":
            app.kill(workers["ingress" if apart else "w1"])
        self._outside = Outside(app, decided, transactional=self._how == "open transaction")
        self._outside.answer_all(self.rows)
        self._outside.flush()
        self.deadlines = [request.deadline_epoch_ms for request in self._outside.asked]

    def _worker(self, name: str, roles: str) -> Child:
        return self.app.worker(name, roles=roles, state_dir=self.app.folder / f"state-{name}", altered=self._altered)

    def go_on(self) -> None:
        """What was away comes back, some seconds after the last deadline."""
        assert self._outside is not None
        time.sleep(max(0.0, max(self.deadlines) / 1000 + PAST_S - time.time()))
        self.rung_meanwhile = _count(self.app, InteractionTimedOut)
        if self._how == "open transaction":
            self._outside.commit()
        elif self._how == "ingress":
            self._worker("ingress", "ingress")
        else:
            self._worker("w1", "core,ingress,continuation")

    def judge(self, checks: Checks, expected: dict[str, bytes]) -> None:
        """All admitted, none late."""
        assert self._outside is not None
        app = self.app
        told = app.wait([self._execution], timeout_s=60)
        stamps = [record.timestamp_ms for record in app.records(app.results_topic)]
        held, figures = app.judge(self.rows, [self.path], told, expected)
        admitted, refusals = _count(app, BoundaryCompletionAdmitted), app.refusals()
        rung = _count(app, InteractionTimedOut)
        in_time = sum(stamp < min(self.deadlines) for stamp in stamps)
        checks.that(
            f"{self.name}: {self.rows} admitted, none late",
            held and admitted == self.rows == in_time and not refusals and not rung,
            f"{figures}; {in_time} stamped in time, {admitted} admitted, {len(refusals)} refused, {rung} deadlines rang "
            f"({self.rung_meanwhile} of them before it came back)",
        )


def _count(app: App, kind: type) -> int:
    return sum(isinstance(fact, kind) for fact in app.facts())


@line(
    "on_time",
    "Workers, or ingress alone, away past the deadline while 1,000 answers lie on the response topic, stamped in time; "
    "a provider whose transaction is still open at the deadline: all admitted, none late",
)
def away(ground: Ground, checks: Checks) -> None:
    """The stories run side by side, each with an application of its own: most of it is waiting."""
    rows = ground.size(1_000, 200)
    path = ground.payments(rows)
    expected = ground.undisturbed([path])
    stories = [
        Story(ground, "workers away", path, rows, how="workers"),
        Story(ground, "workers away, suspending", path, rows, how="workers", overrides=SUSPENDING),
        Story(ground, "ingress away", path, rows, how="ingress"),
        Story(ground, "open transaction", path, rows, how="open transaction"),
    ]
    _tell(stories, checks, expected)


def _tell(stories: list[Story], checks: Checks, expected: dict[str, bytes]) -> None:
    for story in stories:
        story.begin()
    for story in stories:
        story.go_on()
        story.judge(checks, expected)


@line("on_time", "The same with worker clocks 30 s ahead and behind: a warning, no wrong outcome")
def off_clocks(ground: Ground, checks: Checks) -> None:
    """Deadlines stand on the broker's clock; an unanswered one rings at its time, by anybody's watch."""
    rows = ground.size(1_000, 200)
    path = ground.payments(rows)
    expected = ground.undisturbed([path])
    stories = [
        Story(ground, f"clock {SKEW_S} s {word}", path, rows, how="workers", skew_s=skew_s)
        for word, skew_s in (("ahead", SKEW_S), ("behind", -SKEW_S))
    ]
    _tell(stories, checks, expected)
    silent = {story.name: story.app.submit(ground.payments(20, name="silent_20.csv", seed=5)) for story in stories}
    for story in stories:
        _judge_clock(story, silent[story.name], checks)


def _judge_clock(story: Story, silent: str, checks: Checks) -> None:
    """What the log says, where deadlines stand, when the unanswered execution ends."""
    app = story.app
    said = [text for text in app.logged("worker-w1").splitlines() if CLOCK_WARNING.search(text)]
    checks.that(f"{story.name}: a warning", said, said[0].strip()[:200] if said else "nothing about the clock")
    ended = app.wait([silent], timeout_s=TIMEOUT_S + SKEW_S + 30)[silent]
    asked = list(requests_of(app))
    waits = [request.deadline_epoch_ms - request.at_ms for request in asked]
    checks.that(
        f"{story.name}: each deadline is {TIMEOUT_S} s after its request, by the broker's clock",
        all(abs(wait - TIMEOUT_S * 1000) <= CLOCK_TOLERANCE_MS for wait in waits),
        f"{min(waits) / 1000:.2f} to {max(waits) / 1000:.2f} s",
    )
    first = min(request.deadline_epoch_ms for request in asked if request.execution_id == silent)
    rang = [record.timestamp_ms for record in app.records(app.names.facts) if record.key == silent.encode()]
    after_s = (max(rang) - first) / 1000
    checks.that(
        f"{story.name}: an unanswered deadline rings at its time",
        ended.status == "FAILED" and "TIME" in (ended.error_code or "") and 0 <= after_s <= RING_S_MAX,
        f"{ended.status} {ended.error_code}, {after_s:.1f} s after its deadline",
    )
