"""The machines of a simulated run together: which are up, and what becomes of them: started, stopped, stalled, doubled, set back."""

from __future__ import annotations

from random import Random

from streams.clock import ManualClock, SkewedClock
from streams.log.memory.log import MemoryLog
from streams.simulation.coverage import Coverage
from streams.simulation.machines import At, Machine, consumer_of, transactional_id_of
from streams.simulation.scenario import Say, Scenario
from streams.worker.assembly import ROLES

SKEWS_MS = (0, 0, 700, -700, 30_000, -30_000, 200_000, -200_000)
"""How wrong the clock of a machine may be."""

DRIFTS_PPM = (0, 0, 20, -20)
"""How much faster or slower it may go."""


class Fleet:
    """Every machine.

    Attributes:
        stepping: Which machines stand in the middle of a step of which role; the last one is innermost.
        at: What each of them calls before each numbered step of a commit.
    """

    def __init__(
        self,
        scenario: Scenario,
        log: MemoryLog,
        clock: ManualClock,
        rng: Random,
        coverage: Coverage,
        say: Say,
    ) -> None:
        self._scenario = scenario
        self._log = log
        self._rng = rng
        self._coverage = coverage
        self._say = say
        self.at: At = lambda _machine, _step: None
        self.stepping: list[tuple[Machine, str]] = []
        clocks = Random(scenario.seed ^ 0xC10C)  # noqa: S311 - a simulation is no secret
        self.machines = [
            Machine(
                f"machine-{number}",
                scenario.pipeline,
                log,
                SkewedClock(clock, clocks.choice(SKEWS_MS), clocks.choice(DRIFTS_PPM)),
                static=scenario.static,
                roles=_roles_of(number, scenario),
            )
            for number in range(scenario.machines)
        ]

    # --- questions ---------------------------------------------------------------------------------------------------

    def running(self) -> list[Machine]:
        """Machines that can be stepped now: alive, and not in the middle of a step."""
        busy = {machine.name for machine, _ in self.stepping}
        return [
            machine
            for machine in self.machines
            if machine.worker is not None and not machine.is_stalled and machine.name not in busy
        ]

    @property
    def is_ready(self) -> bool:
        """Whether whatever runs has taken up what is its own."""
        return all(machine.worker is not None and machine.worker.is_ready for machine in self.running())

    def runs(self, role: str) -> bool:
        """Whether a machine that runs has the role."""
        return any(role in machine.roles for machine in self.running())

    def look_at_input(self) -> None:
        """Whoever runs looks at the input folder, if it is theirs to do."""
        for machine in self.running():
            machine.look_at_input()

    # --- up and down -------------------------------------------------------------------------------------------------

    def start_some(self) -> None:
        """Start a machine that is down, or wake one that is stalled."""
        down = [machine for machine in self.machines if machine.worker is None or machine.is_stalled]
        if not down:
            return
        machine = self._rng.choice(down)
        if machine.is_stalled:
            self._say(f"{machine.name}: wakes up")
            machine.is_stalled = False
            return
        if not machine.static:
            machine.bury()
        disk = machine.lose_disk(self._rng)
        self._say(f"{machine.name}: starts with {disk}")
        self._coverage.faults[f"start with {disk}"] += 1
        machine.start(self.at)

    def restart_all(self) -> None:
        """Start everything anew, on the disks that are there."""
        self.stop_all()
        self.make_whole()

    def stop_all(self) -> None:
        """Kill every process, and let its sessions end."""
        for machine in self.machines:
            machine.is_stalled = False
            machine.kill()
        self.bury_all()

    def make_whole(self) -> None:
        """Start what is missing of the roles; two processes of one name may both have met a newer one."""
        self._log.expire_transaction(f"{self._scenario.pipeline.app}.application")  # of a start that did not end
        for role in ROLES:
            if not self.runs(role):
                next(machine for machine in self.machines if role in machine.roles).start(self.at)

    def bury_all(self) -> None:
        """End the sessions and transactions of all processes that are dead."""
        for machine in self.machines:
            if machine.worker is None:
                machine.bury()

    def bury_some(self) -> None:
        """Let the session and the transactions of a dead machine end at last."""
        dead = [machine for machine in self.machines if machine.dead and machine.worker is None]
        if dead:
            machine = self._rng.choice(dead)
            self._say(f"{machine.name}: its sessions end")
            machine.bury()

    def close_some(self) -> None:
        """Stop a machine cleanly."""
        running = self.running()
        if len(running) > 1 or (running and self._rng.random() < 0.2):
            machine = self._rng.choice(running)
            self._say(f"{machine.name}: stops")
            assert machine.worker is not None
            machine.worker.close()
            machine.kill()

    # --- trouble -----------------------------------------------------------------------------------------------------

    def keep_disk(self) -> None:
        """Remember a disk, for a restart from a backup."""
        machine = self._rng.choice(self.machines)
        machine.old_disk = machine.disks.copied()

    def stall_some(self) -> None:
        """Stall a machine: it is not stepped any more, and its sessions end."""
        running = self.running()
        if len(running) < 2:
            return
        machine = self._rng.choice(running)
        machine.is_stalled = True
        self._say(f"{machine.name}: stands still")
        self._coverage.faults["zombie"] += 1
        assert machine.worker is not None
        for loop in machine.worker.loops.values():
            consumer = consumer_of(loop)
            if consumer is not None:
                self._log.kick(consumer)
            if self._rng.random() < 0.3:
                self._log.expire_transaction(transactional_id_of(loop))

    def usurp(self) -> None:
        """Start a second process under a machine's name; the first one learns of it when it is stepped."""
        running = self.running()
        if not running or not self._scenario.static or len(self.machines) > 4:
            return
        first = self._rng.choice(running)
        self._say(f"{first.name}: a second process takes its name")
        self._coverage.faults["second process"] += 1
        second = first.twin()
        self.machines.append(second)
        second.start(self.at)

    def set_clock(self) -> None:
        """Set the clock of a machine, to another wrong time or to the right one."""
        machine = self._rng.choice(self.machines)
        by_ms = self._rng.choice(SKEWS_MS)
        self._say(f"{machine.name}: its clock is set to {by_ms} ms from the broker's")
        self._coverage.faults["clock of a machine set"] += 1
        machine.clock.set(by_ms)


def _roles_of(number: int, scenario: Scenario) -> tuple[str, ...]:
    """The roles of a machine: all; or where they are apart, the core's on the first machine and the others' on the second."""
    if not scenario.apart or number > 1:
        return ROLES
    first = {"core", "continuation"} if scenario.seed % 2 else {"core"}
    return tuple(role for role in ROLES if (role in first) == (number == 0))
