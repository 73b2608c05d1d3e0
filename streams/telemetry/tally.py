"""The tally of an open batch: what it did, counted in the metrics once it is committed, and forgotten when it did not happen."""

from __future__ import annotations

from collections import Counter, defaultdict

from schemas.facts import Fact
from streams.telemetry.metrics import Metrics


class Tally:
    """What one task's open batch did."""

    def __init__(self, metrics: Metrics) -> None:
        self.kinds: defaultdict[type, int] = defaultdict(int)
        """Facts and decisions, by class: counted for every row, so nothing is made of them before the commit."""
        self._named: Counter[tuple[str, str]] = Counter()
        self._metrics = metrics

    def count(self, kind: str, name: str) -> None:
        """Count something that has a name: a refusal, a dead letter, a reason (`Metrics.decided`)."""
        self._named[kind, name] += 1

    def commit(self) -> None:
        """The batch is committed."""
        for kind, count in self.kinds.items():
            self._named["fact" if issubclass(kind, Fact) else "decision", kind.__name__] = count
        if self._named:
            self._metrics.decided(self._named)
        self.drop()

    def drop(self) -> None:
        """The batch did not happen, or is counted."""
        self.kinds.clear()
        self._named.clear()
