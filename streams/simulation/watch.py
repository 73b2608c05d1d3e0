"""What must hold at every moment of a simulated run: checked after every move, and before the numbered steps of every commit."""

from __future__ import annotations

from typing import Any

from state.interaction import InteractionStatus
from state.keys import interaction_key
from state.tables.overlay import WrongAssumption
from streams.simulation.machines import WORK_ENDS, Machine, consumer_of, is_member, paused_of, task_insides
from streams.simulation.tables import check_tables, check_waiting
from streams.simulation.violation import Breach, Violation
from streams.simulation.world import World

SUSPICIOUS = {
    "a batch could not be decided": Breach.BATCH_NOT_DECIDED,
    "an event cannot be committed": Breach.EVENT_BLAMED,
}
"""What a worker logs when its own code is wrong: the start of a line, and the breach that it shows."""

SENT = 4
"""The numbered step of a commit before which the broker has taken the positions of the batch, or refused them."""

COMMITTED = 6
"""The numbered step of a commit before which the batch is committed."""

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
        self._zombies: set[tuple[Machine, str]] = set()
        """The loops that have sent positions of partitions which are not theirs."""
        world.before_step = self.before_step

    def after_move(self) -> None:
        """Check facts and logs, and now and then the tables."""
        world = self._world
        if world.violation is not None:
            raise world.violation
        if not world.is_broker_away:
            world.ledger.follow()
        self._read_logs()
        if world.rng.random() < 0.05 and not world.is_broker_away and world.is_between_steps:
            world.coverage.faults["tables compared"] += 1
            check_tables(world)
            check_waiting(world)

    def at_rest(self) -> None:
        """Check, when nothing has happened for two rounds, that every loop would read what came."""
        for machine in self._world.running():
            assert machine.worker is not None
            for role, loop in machine.worker.loops.items():
                full = {
                    at for task in loop.tasks.values() for at in task.full_inputs()
                }  # of a batch that is tried again
                paused = set(paused_of(loop)) - full
                if paused:
                    raise Violation(
                        Breach.PAUSED_FOR_NOTHING, f"{machine.name} does not read {sorted(paused)} as {role}"
                    )

    def before_step(self, machine: Machine, role: str, step: int) -> None:
        """Check what a loop has done and is about to do."""
        self._check_owner(machine, role, step)
        if role == "core":
            if step < RELEASE:
                self._check_offers(machine)
            else:
                self._check_work(machine)

    def _read_logs(self) -> None:
        for event in self._logs[self._logs_read :]:
            if self._world.tracing:
                self._world.say(f"log: { ({name: value for name, value in event.items() if name != 'exc_info'}) }")
            if str(event.get("exc_info")).startswith(WrongAssumption.__name__):
                raise Violation(Breach.ROW_NOT_NEW, f"a worker logged {event}")
            for start, breach in SUSPICIOUS.items():
                if str(event.get("event", "")).startswith(start):
                    raise Violation(breach, f"a worker logged {event}")
        self._logs_read = len(self._logs)

    def _check_owner(self, machine: Machine, role: str, step: int) -> None:
        """A loop that sends positions of partitions which it does not own any more never commits."""
        assert machine.worker is not None
        loop = machine, role
        if step == SENT:
            consumer = consumer_of(machine.worker.loops[role])
            self._zombies.discard(loop)
            if consumer is not None and not is_member(self._world.log, consumer, though_rebalancing=True):
                self._zombies.add(loop)
        elif step == COMMITTED and loop in self._zombies:
            raise Violation(Breach.ZOMBIE_COMMITTED, f"{machine.name} committed as {role} for partitions it had lost")

    def _check_work(self, machine: Machine) -> None:
        """No local work is started while an earlier result of it waits to be decided."""
        for task in machine.tasks:
            waiting = {entry.event.execution_id for entry in task.agenda.ready if isinstance(entry.event, WORK_ENDS)}
            for execution_id in waiting.intersection(task.work._starting):  # noqa: SLF001
                raise Violation(Breach.WORK_STARTED_TWICE, f"{execution_id}: its first result waits to be decided")

    def _check_offers(self, machine: Machine) -> None:
        """Nothing is offered before its completion is committed."""
        for task in machine.tasks:
            store, sessions, _ = task_insides(task)
            for session in sessions.values():
                keys = [interaction_key(session.unit_id, index) for index in session.offers]
                for key, value in zip(keys, store.get_many(keys), strict=True):
                    if value is None or not self._is_answered(key):
                        raise Violation(
                            Breach.OFFERED_BEFORE_COMMIT, f"{key!r} was offered before its completion was committed"
                        )

    def _is_answered(self, key: bytes) -> bool:
        """Whether the facts say that an interaction is answered; facts that the ledger has not read yet are read first."""
        ledger = self._world.ledger
        row = ledger.rows.get(key)
        if row is None or row.status is InteractionStatus.PENDING:
            ledger.follow()
            row = ledger.rows.get(key)
        return row is not None and row.status is not InteractionStatus.PENDING
