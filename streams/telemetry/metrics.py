"""Metrics, by prometheus-client, in a registry of the worker's own; labels never carry ids (BEHAVIOUR F173)."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Metrics:
    """Everything a worker counts."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        made = self.registry
        self._facts = Counter("kawait_facts", "Facts appended", ["fact"], registry=made)
        self._decisions = Counter("kawait_decisions", "Decisions performed", ["decision"], registry=made)
        self._reasons = Counter("kawait_no_ops", "Decisions to do nothing", ["reason"], registry=made)
        self._refusals = Counter("kawait_refusals", "Answers refused", ["reason"], registry=made)
        self._dead = Counter("kawait_dead_letters", "Dead letters written", ["reason"], registry=made)
        self._misplaced = Counter(
            "kawait_misplaced_records", "Records forwarded to their home partition", ["topic"], registry=made
        )
        self._batch = Histogram(
            "kawait_batch_records", "Events decided in one transaction", ["role"], buckets=RECORDS, registry=made
        )
        self._batch_s = Histogram("kawait_batch_seconds", "Time of one batch", ["role"], buckets=SECONDS, registry=made)
        self._transaction_s = Histogram(
            "kawait_transaction_seconds", "Begin to commit", ["role"], buckets=SECONDS, registry=made
        )
        self._aborts = Counter("kawait_aborts", "Transactions aborted", ["role"], registry=made)
        self._unknown = Counter("kawait_commits_unknown", "Commits with an unknown outcome", ["role"], registry=made)
        self._rebalances = Counter("kawait_rebalances", "Assignments received", ["role"], registry=made)
        self._assigned = Gauge("kawait_assigned_partitions", "Partitions owned", ["role"], registry=made)
        self._unread = Gauge(
            "kawait_unread_partitions", "Partitions of a role's inputs that no worker reads", ["role"], registry=made
        )
        self._restore_done = Gauge(
            "kawait_restore_done_records", "Changelog offsets followed", ["partition"], registry=made
        )
        self._restore_total = Gauge(
            "kawait_restore_total_records", "Changelog offsets to follow", ["partition"], registry=made
        )
        self.open_interactions = Gauge("kawait_open_interactions", "Requests without an answer", registry=made)
        self.oldest_pending_age = Gauge(
            "kawait_oldest_pending_age_seconds", "Age of the oldest request without an answer", registry=made
        )
        self.deadlines_held = Gauge(
            "kawait_deadlines_held", "Due deadlines held back for long by answers not taken over yet", registry=made
        )
        self._clock_difference = Gauge(
            "kawait_clock_difference_seconds", "How far the broker's clock is ahead of the machine's", registry=made
        )
        self.input_missing = Gauge("kawait_input_missing", "1 while the input location cannot be listed", registry=made)
        self.window_occupancy = Gauge(
            "kawait_window_occupancy", "Window slots taken over all live sessions", registry=made
        )

    def decided(self, counts: Mapping[tuple[str, str], int]) -> None:
        """What a committed batch did."""
        for (kind, name), count in counts.items():
            match kind:
                case "fact":
                    self._facts.labels(name).inc(count)
                case "decision":
                    self._decisions.labels(name).inc(count)
                case "refusal":
                    self._refusals.labels(name).inc(count)
                case "dead":
                    self._dead.labels(name).inc(count)
                case "misplaced":
                    self._misplaced.labels(name).inc(count)
                case _:
                    self._reasons.labels(name).inc(count)

    def committed(self, role: str, events: int, batch_s: float, transaction_s: float) -> None:
        """A transaction was committed."""
        self._batch.labels(role).observe(events)
        self._batch_s.labels(role).observe(batch_s)
        self._transaction_s.labels(role).observe(transaction_s)

    def aborted(self, role: str) -> None:
        """A transaction was aborted."""
        self._aborts.labels(role).inc()

    def commit_unknown(self, role: str) -> None:
        """A commit's outcome was lost."""
        self._unknown.labels(role).inc()

    def rebalanced(self, role: str, partitions: int) -> None:
        """Partitions were assigned."""
        self._rebalances.labels(role).inc()
        self._assigned.labels(role).set(partitions)

    def unread(self, role: str, partitions: int) -> None:
        """The inputs of a role were compared with what its group reads."""
        self._unread.labels(role).set(partitions)

    def restoring(self, partition: int, done: int, total: int) -> None:
        """A restore went on."""
        self._restore_done.labels(str(partition)).set(done)
        self._restore_total.labels(str(partition)).set(total)

    def clocks_differ(self, seconds: float) -> None:
        """The broker's time was measured."""
        self._clock_difference.set(seconds)

    def gave_up(self, partition: int) -> None:
        """A partition was given up."""
        for gauge in (self._restore_done, self._restore_total):
            gauge.labels(str(partition)).set(0)
