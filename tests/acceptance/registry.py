"""The lines of acceptance: each is a function that checks promises of the issues on the real thing, and says with which figures."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.acceptance.ground import Ground


@dataclass(frozen=True)
class Check:
    """One promise: whether it held, and the figures that say so."""

    what: str
    held: bool
    figures: str

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return {"what": self.what, "held": self.held, "figures": self.figures}


@dataclass
class Checks:
    """What a line has checked so far."""

    done: list[Check] = field(default_factory=list)
    say: Callable[[str], None] = lambda _text: None

    def that(self, what: str, held: object, figures: object = "") -> bool:
        """Note one promise; a line goes on after one that did not hold."""
        check = Check(what, bool(held), str(figures))
        self.done.append(check)
        self.say(f"    {'ok  ' if check.held else 'FAIL'} {what}{': ' if check.figures else ''}{check.figures}")
        return check.held

    def note(self, what: str, figures: object) -> None:
        """A figure without a limit."""
        self.that(what, held=True, figures=figures)


@dataclass(frozen=True)
class Line:
    """A line of "It must show"."""

    name: str
    promise: str
    run: Callable[[Ground, Checks], None]


LINES: list[Line] = []
"""In the order in which they run."""


def line(name: str, promise: str) -> Callable[[Callable[[Ground, Checks], None]], Callable[[Ground, Checks], None]]:
    """Register a line; several functions may share a name and are chosen together."""

    def register(run: Callable[[Ground, Checks], None]) -> Callable[[Ground, Checks], None]:
        LINES.append(Line(name, promise, run))
        return run

    return register


@dataclass(frozen=True)
class Result:
    """What came of a line."""

    line: Line
    checks: list[Check]
    seconds: float

    @property
    def held(self) -> bool:
        """All of its checks held, and there was one."""
        return bool(self.checks) and all(check.held for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "line": self.line.name,
            "promise": self.line.promise,
            "held": self.held,
            "seconds": round(self.seconds, 1),
            "checks": [check.to_json() for check in self.checks],
        }


def run_line(chosen: Line, ground: Ground, say: Callable[[str], None]) -> Result:
    """Run one line; an error of its own is a check that did not hold."""
    checks = Checks(say=say)
    began_s = time.monotonic()
    try:
        chosen.run(ground, checks)
    except Exception as error:
        place = "".join(traceback.format_exception(error)[-4:])
        checks.that("it ran to its end", held=False, figures=place)
    finally:
        ground.clear()
    return Result(chosen, checks.done, time.monotonic() - began_s)
