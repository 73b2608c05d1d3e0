"""What goes wrong on the broker of a simulated run: commits, absence, compaction, retention of topics."""

from __future__ import annotations

from random import Random

from schemas.names import Names
from streams.log.memory.broker import CommitFault
from streams.log.memory.log import MemoryLog
from streams.simulation.coverage import Coverage
from streams.simulation.machines import group_of
from streams.simulation.scenario import Say


class BrokerFaults:
    """The moves of the broker."""

    def __init__(self, log: MemoryLog, names: Names, rng: Random, coverage: Coverage, say: Say) -> None:
        self._log = log
        self._names = names
        self._rng = rng
        self._coverage = coverage
        self._say = say
        self._away_for = 0

    @property
    def is_away(self) -> bool:
        """Whether the broker answers nobody."""
        return self._away_for > 0

    def fail_commit(self) -> None:
        """Let the next commit go wrong."""
        faults: tuple[CommitFault, ...] = ("abort", "before", "after", "after")
        fault = self._rng.choice(faults)
        self._say(f"broker: the next commit fails ({fault})")
        self._coverage.faults[f"commit {fault}"] += 1
        self._log.fail_next_commit(fault)

    def go_away(self) -> None:
        """Take the broker away for a while."""
        if not self.is_away:
            self._away_for = self._rng.randint(1, 8)
            self._say(f"broker: away for {self._away_for} moves")
            self._coverage.faults["broker away"] += 1
            self._log.set_available(available=False)

    def after_move(self) -> None:
        """A move was made: the broker may come back."""
        if self._away_for > 0:
            self._away_for -= 1
            if self._away_for == 0:
                self._say("broker: back")
                self._log.set_available(available=True)

    def come_back(self) -> None:
        """Be there, for good."""
        self._away_for = 0
        self._log.set_available(available=True)

    def compact(self) -> None:
        """Compact the changelogs."""
        self._coverage.faults["compaction"] += 1
        self._log.compact()

    def trim(self) -> None:
        """Remove what was consumed, as retention does."""
        if self.is_away:
            return
        self._coverage.faults["retention"] += 1
        for role, topics in (("core", (self._names.commands,)), ("continuation", (self._names.continuations,))):
            for at, offset in group_of(self._log, self._names.group(role)).committed.items():
                if at.topic in topics:
                    self._log.trim(at, offset)
