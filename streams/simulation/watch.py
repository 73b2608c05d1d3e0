"""What must hold at every moment of a simulated run: checked after every move, and before the numbered steps of every commit."""

from __future__ import annotations

from typing import Any

from state.interaction import InteractionStatus
from state.keys import interaction_key
from streams.simulation.ledger import Violation
from streams.simulation.machines import Machine, task_insides
from streams.simulation.tables import check_tables, check_waiting
from streams.simulation.world import World

SUSPICIOUS = ("a batch could not be decided", "an event cannot be committed")
"""What a worker logs when its own code is wrong."""

RELEASE = 7
"""The numbered step of a commit that releases what the batch decided, offers among it."""


class Watch:
    """Looks at a world while it is played.

    Args:
        logs: What its workers log, growing.
    """

    def __init__(self, world: World, logs: list[dict[str, Any]]) -> None:
        self._world = world
        self._logs = logs
        self._logs_read = 0
        world.before_step = self.before_step

    def after_move(self) -> None:
        """Check facts and logs, and now and then the tables."""
        world = self._world
        if world.found is not None:
            raise world.found
        if not world.is_broker_away:
            world.ledger.follow()
        self._read_logs()
        if world.rng.random() < 0.05 and not world.is_broker_away and world.is_between_steps:
            world.coverage.faults["tables compared"] += 1
            check_tables(world)
            check_waiting(world)

    def before_step(self, machine: Machine, role: str, step: int) -> None:
        """Check what a loop is about to do in a numbered step of its commit."""
        if step < RELEASE and role == "core":
            self._check_offers(machine)

    def _read_logs(self) -> None:
        for event in self._logs[self._logs_read :]:
            if self._world.tracing:
                self._world.say(f"log: { ({name: value for name, value in event.items() if name != 'exc_info'}) }")
            if str(event.get("event", "")).startswith(SUSPICIOUS):
                raise Violation(f"a worker logged {event}")
        self._logs_read = len(self._logs)

    def _check_offers(self, machine: Machine) -> None:
        """Nothing is offered before its completion is committed."""
        for task in machine.tasks:
            store, sessions, _ = task_insides(task)
            for session in sessions.values():
                keys = [interaction_key(session.unit_id, index) for index in session.offers]
                for key, value in zip(keys, store.get_many(keys), strict=True):
                    if value is None or not self._is_answered(key):
                        raise Violation(f"{key!r} was offered before its completion was committed")

    def _is_answered(self, key: bytes) -> bool:
        """Whether the facts say so, those that the ledger has not read yet included."""
        ledger = self._world.ledger
        row = ledger.rows.get(key)
        if row is None or row.status is InteractionStatus.PENDING:
            ledger.follow()
            row = ledger.rows.get(key)
        return row is not None and row.status is not InteractionStatus.PENDING
