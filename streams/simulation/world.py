"""The world of one seed: machines, an outside party and a clock, and the moves that each of them can make.

A world judges nothing: `streams.simulation.run` makes its moves, `streams.simulation.watch` and `streams.simulation.verdict` look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from schemas.envelopes import CancelCommand
from schemas.errors import InstanceFenced
from schemas.names import Names
from streams.clock import ManualClock
from streams.doors.submissions import send
from streams.log.memory.broker import CommitFault
from streams.log.memory.log import MemoryLog
from streams.simulation.coverage import ROLES_BY_WEIGHT, STEPS, Coverage
from streams.simulation.ledger import Ledger
from streams.simulation.machines import (
    Killed,
    Machine,
    consumer_of,
    group_of,
    machines_of,
    paused_of,
    transactional_id_of,
)
from streams.simulation.outside import Outside
from streams.simulation.scenario import Say, Scenario, without_trace
from streams.simulation.violation import Violation
from streams.worker.application import take_up
from streams.worker.topics import ensure_topics


class World:
    """Everything there is in one run.

    Attributes:
        before_step: Called before each numbered step of a commit, with the machine, the role and the step. What it raises ends the run.
        violation: What `before_step` raised.
    """

    def __init__(self, scenario: Scenario, say: Say) -> None:
        self.scenario = scenario
        self.rng = Random(scenario.seed ^ 0x5EED)  # noqa: S311 - a simulation is no secret
        self.clock = ManualClock()
        self.log = MemoryLog(clock=self.clock)
        self.names = Names.of(scenario.pipeline.app)
        self.coverage = Coverage()
        self.coverage.shapes[scenario.shape] += 1
        self.tracing = say is not without_trace
        self._say = say
        ensure_topics(scenario.pipeline, self.log)
        taken_up = take_up(scenario.pipeline, self.log)
        self.machines = machines_of(scenario, self.log, self.clock, taken_up)
        self.ledger = Ledger(scenario, self.log, self.names, self.say)
        self.outside = Outside(scenario, self.log, self.rng, self.say)
        self.doors = self.log.plain_producer()
        self.unsubmitted = list(scenario.submissions)
        self.cancelled: set[str] = set()
        self.clock_was_set = False
        self.before_step: Callable[[Machine, str, int], None] = lambda _machine, _role, _step: None
        self.violation: Violation | None = None
        self._armed: dict[str, tuple[int, str]] = {}
        self._stepping: list[tuple[Machine, str]] = []
        self._away_for = 0
        self._is_peace = False
        self._moves = self._weighted_moves()

    def say(self, text: str) -> None:
        """Add a line to the trace of the run."""
        self._say(text)

    def begin(self) -> None:
        """Start the first machine, with or without something to do."""
        if self.tracing:
            self.say(self.scenario.describe())
        self.scenario.author.reset()
        self.machines[0].start(self.at)
        if self.scenario.early or self.rng.random() < 0.5:
            self.submit()
        if self.rng.random() < 0.5:
            self._armed["continuation"] = self.rng.randint(1, STEPS), "kill"

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def is_broker_away(self) -> bool:
        """Whether the broker answers nobody."""
        return self._away_for > 0

    @property
    def is_between_steps(self) -> bool:
        """Whether no loop stands in the middle of a step."""
        return not self._stepping

    def running(self) -> list[Machine]:
        """Machines that can be stepped now: alive, and not in the middle of a step."""
        busy = {machine.name for machine, _ in self._stepping}
        return [
            machine
            for machine in self.machines
            if machine.worker is not None and not machine.is_stalled and machine.name not in busy
        ]

    # --- moves -------------------------------------------------------------------------------------------------------

    def _weighted_moves(self) -> tuple[list[Callable[[], None]], list[int]]:
        moves: list[tuple[Callable[[], None], int]] = [
            (self.step_some, 60),
            (self.step_all, 12),
            (self.run_job, 25),
            (self.hear_outside, 25),
            (self.pass_time, 12),
            (self.leave_answers, 3),
            (self.submit, 4),
            (self.arm_kill, 5),
            (self.arm_stall, 4 if self.scenario.machines > 1 else 2),
            (self.start_machine, 6),
            (self.fail_commit, 4),
            (self.expire_transaction, 2),
            (self.go_away, 2),
            (self.compact, 2),
            (self.trim, 1),
            (self.keep_disk, 2),
            (self.close_machine, 1),
            (self.stall_machine, 2 if self.scenario.machines > 1 else 0),
            (self.usurp, 1),
            (self.jump, 4 if self.scenario.jumps else 0),
            (self.overstay, 3 if self.scenario.stalls else 0),
            (self.cancel, 2 if self.scenario.cancels else 0),
        ]
        return [move for move, _ in moves], [weight for _, weight in moves]

    def move(self) -> None:
        """Make one move, drawn by weight."""
        moves, weights = self._moves
        self.rng.choices(moves, weights)[0]()
        if self._away_for > 0:
            self._away_for -= 1
            if self._away_for == 0:
                self.say("broker: back")
                self.log.set_available(available=True)

    def step_some(self) -> None:
        """Step one loop of one machine, core loops more often than others."""
        running = self.running()
        if running:
            self.step(self.rng.choice(running), self.rng.choice(ROLES_BY_WEIGHT))

    def step_all(self) -> None:
        """Step every loop of one machine."""
        running = self.running()
        if running:
            machine = self.rng.choice(running)
            for role in ("ingress", "core", "continuation"):
                if machine.worker is not None:
                    self.step(machine, role)

    def step(self, machine: Machine, role: str) -> bool:
        """Step one loop; a kill inside it ends the machine."""
        assert machine.worker is not None
        self._stepping.append((machine, role))
        loop = machine.worker.loops[role]
        try:
            moved = loop.step()
            if paused_of(loop):
                self.coverage.pauses[role] += 1
            return moved
        except Killed:
            self.say(f"{machine.name}: killed in {role}")
            machine.kill()
            return True
        except InstanceFenced as error:
            self.say(f"{machine.name}: exits, {error}")
            machine.kill()
            return True
        finally:
            self._stepping.pop()

    def run_job(self) -> None:
        """Run one job of a pool."""
        pools = [pool for machine in self.machines if not machine.is_stalled for pool in machine.pools if pool.jobs]
        if pools:
            pool = self.rng.choice(pools)
            pool.run_one(self.rng.randrange(len(pool.jobs)))

    def overstay(self) -> None:
        """Give a job up that overstays its limit."""
        pools = [pool for machine in self.machines for pool in machine.pools if pool.jobs]
        if pools and not self._is_peace:
            pool = self.rng.choice(pools)
            self.say("a job overstays its limit")
            self.coverage.faults["job overstays"] += 1
            pool.overstay(self.rng.randrange(len(pool.jobs)))

    def hear_outside(self) -> None:
        """Let the outside party do something."""
        if self._away_for == 0:
            self.outside.act()

    def submit(self) -> None:
        """Submit the next execution, or one again."""
        if self._away_for > 0:
            return
        execution_id = (
            self.unsubmitted.pop(0) if self.unsubmitted else self.rng.choice(sorted(self.scenario.submissions))
        )
        self.say(f"door: submits {execution_id}")
        send(self.scenario.pipeline, self.doors, self.scenario.submissions[execution_id], timeout_s=1)

    def cancel(self) -> None:
        """Cancel an execution."""
        if self._away_for > 0 or self.rng.random() < 0.5:
            return
        execution_id = self.rng.choice(sorted(self.scenario.submissions))
        self.cancelled.add(execution_id)
        self.say(f"door: cancels {execution_id}")
        send(self.scenario.pipeline, self.doors, CancelCommand(execution_id, "no longer wanted"), timeout_s=1)

    def pass_time(self) -> None:
        """Let some time pass: a little, or now and then as much as brings the clock to about the next deadline."""
        deadline_ms = self.outside.next_deadline_ms()
        if deadline_ms is not None and self.rng.random() < 0.15:
            self.advance(max(deadline_ms + self.rng.choice((-200, -1, 0, 1, 200)) - self.clock.now_ms(), 1))
            return
        most = self.rng.choice((30, 300, 300, 1_500, 6_000, 70_000 if self.scenario.silence else 12_000))
        self.advance(self.rng.randint(1, most))

    def leave_answers(self) -> None:
        """Answer, and let the deadline pass while only core loops go on: nobody takes the answer over."""
        deadline_ms = None if self._away_for > 0 else self.outside.answer_one()
        if deadline_ms is None:
            return
        self.coverage.faults["answers left lying"] += 1
        self.advance(max(deadline_ms + self.rng.choice((0, 1, 200, 5_000)) - self.clock.now_ms(), 0))
        for _ in range(self.rng.randint(1, 12)):
            running = self.running()
            if running:
                self.step(self.rng.choice(running), "core")

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        self.say(f"clock: {by_ms} ms pass")
        self.clock.advance(by_ms)

    def jump(self) -> None:
        """Set the wall clock, forwards or back."""
        by_ms = self.rng.choice((-90_000, -5_000, -300, 300, 5_000, 90_000))
        self.clock_was_set = True
        self.coverage.faults["clock jump"] += 1
        self.say(f"clock: set by {by_ms} ms")
        self.clock.jump(self.clock.now_ms() + by_ms)

    # --- trouble -----------------------------------------------------------------------------------------------------

    def at(self, machine: Machine, step: int) -> None:
        """Called before each numbered step of a commit: look at it, then make the trouble that is armed for it."""
        role = self._stepping[-1][1]
        try:
            self.before_step(machine, role, step)
        except Violation as violation:  # the loop would take it for an event that cannot be decided
            self.violation = violation
            raise Killed from violation
        if role not in self._armed or self._armed[role][0] != step:
            return
        _, trouble = self._armed.pop(role)
        self.say(f"{machine.name}: {trouble} before step {step} of {role}")
        if trouble == "kill":
            self.coverage.kills[role, step] += 1
            raise Killed
        if trouble == "break":
            self.coverage.faults["broken after the commit"] += 1
            raise RuntimeError("broken by the simulation")
        self.coverage.stalls[role, step] += 1
        self._stall_in_commit(machine, role)

    def _stall_in_commit(self, machine: Machine, role: str) -> None:
        """Let the world go on while one loop stands in the middle of its commit."""
        loop = machine.worker.loops[role] if machine.worker else None
        consumer = consumer_of(loop) if loop else None
        if consumer is not None and self.rng.random() < 0.7:
            self.say(f"{machine.name}: its session of {role} ends")
            self.log.kick(consumer)
        if loop is not None and self.rng.random() < 0.4:
            self.say(f"{machine.name}: its transaction of {role} times out")
            self.log.expire_transaction(transactional_id_of(loop))
        if self.rng.random() < 0.5:
            self.start_machine()
        for _ in range(self.rng.randint(3, 25)):
            running = self.running()
            if running and self.rng.random() < 0.75:
                other = self.rng.choice(running)
                self.step(other, role if self.rng.random() < 0.7 else self.rng.choice(ROLES_BY_WEIGHT))
                for pool in other.pools:
                    if pool.jobs:
                        pool.run_one(0)
            else:
                self.rng.choice((self.run_job, self.hear_outside, self.pass_time))()
        self.say(f"{machine.name}: goes on")

    def arm_kill(self) -> None:
        """Arm a kill of the next loop of a role that comes to a step; seldom only an error, once the batch is committed."""
        if self.rng.random() < 0.1:
            self._armed[self.rng.choice(("core", "ingress"))] = self.rng.choice((6, 7)), "break"
        else:
            self._arm("kill")

    def arm_stall(self) -> None:
        """Arm a stall: the next loop of a role that comes to a step stands still there for a while."""
        self._arm("stall")

    def _arm(self, trouble: str) -> None:
        self._armed[self.rng.choice(("core", "core", "ingress", "continuation"))] = self.rng.randint(1, STEPS), trouble

    def start_machine(self) -> None:
        """Start a machine that is down, or wake one that is stalled."""
        down = [machine for machine in self.machines if machine.worker is None or machine.is_stalled]
        if not down or self._away_for > 0:
            return
        machine = self.rng.choice(down)
        if machine.is_stalled:
            self.say(f"{machine.name}: wakes up")
            machine.is_stalled = False
            return
        if not machine.static:
            machine.bury()
        disk = machine.lose_disk(self.rng)
        self.say(f"{machine.name}: starts with {disk}")
        self.coverage.faults[f"start with {disk}"] += 1
        machine.start(self.at)

    def fail_commit(self) -> None:
        """Let the next commit go wrong."""
        faults: tuple[CommitFault, ...] = ("abort", "before", "after", "after")
        fault = self.rng.choice(faults)
        self.say(f"broker: the next commit fails ({fault})")
        self.coverage.faults[f"commit {fault}"] += 1
        self.log.fail_next_commit(fault)

    def expire_transaction(self) -> None:
        """Let the session and the transactions of a dead machine end at last."""
        dead = [machine for machine in self.machines if machine.dead and machine.worker is None]
        if dead:
            machine = self.rng.choice(dead)
            self.say(f"{machine.name}: its sessions end")
            machine.bury()

    def go_away(self) -> None:
        """Take the broker away for a while."""
        if self._away_for == 0 and not self._stepping:
            self._away_for = self.rng.randint(1, 8)
            self.say(f"broker: away for {self._away_for} moves")
            self.coverage.faults["broker away"] += 1
            self.log.set_available(available=False)

    def compact(self) -> None:
        """Compact the changelogs."""
        self.coverage.faults["compaction"] += 1
        self.log.compact()

    def trim(self) -> None:
        """Remove what was consumed, as retention does."""
        if self._away_for > 0:
            return
        self.coverage.faults["retention"] += 1
        for role, topics in (("core", (self.names.commands,)), ("continuation", (self.names.continuations,))):
            for at, offset in group_of(self.log, self.names.group(role)).committed.items():
                if at.topic in topics:
                    self.log.trim(at, offset)

    def keep_disk(self) -> None:
        """Remember a disk, for a restart from a backup."""
        machine = self.rng.choice(self.machines)
        machine.old_disk = machine.disks.copied()

    def close_machine(self) -> None:
        """Stop a machine cleanly."""
        running = self.running()
        if len(running) > 1 or (running and self.rng.random() < 0.2):
            machine = self.rng.choice(running)
            self.say(f"{machine.name}: stops")
            assert machine.worker is not None
            machine.worker.close()
            machine.kill()

    def stall_machine(self) -> None:
        """Stall a machine: it is not stepped any more, and its sessions end."""
        running = self.running()
        if len(running) < 2:
            return
        machine = self.rng.choice(running)
        machine.is_stalled = True
        self.say(f"{machine.name}: stands still")
        self.coverage.faults["zombie"] += 1
        assert machine.worker is not None
        for loop in machine.worker.loops.values():
            consumer = consumer_of(loop)
            if consumer is not None:
                self.log.kick(consumer)
            if self.rng.random() < 0.3:
                self.log.expire_transaction(transactional_id_of(loop))

    def usurp(self) -> None:
        """Start a second process under a machine's name; the first one learns of it when it is stepped."""
        running = self.running()
        if not running or not self.scenario.static or len(self.machines) > 4 or self._away_for > 0:
            return
        first = self.rng.choice(running)
        self.say(f"{first.name}: a second process takes its name")
        self.coverage.faults["second process"] += 1
        second = first.twin()
        self.machines.append(second)
        second.start(self.at)

    # --- peace -------------------------------------------------------------------------------------------------------

    def make_peace(self) -> None:
        """Let nothing go wrong from now on, but for the kills that are armed and have not met their step."""
        self.say("--- peace ---")
        self._is_peace = True
        self._away_for = 0
        self._armed = {role: armed for role, armed in self._armed.items() if armed[1] == "kill"}
        self.log.set_available(available=True)
        while self.unsubmitted:
            self.submit()
        for machine in self.machines:
            machine.is_stalled = False
            if machine.worker is None:
                machine.bury()
        if all(machine.worker is None for machine in self.machines):
            self.machines[0].start(self.at)

    def round(self) -> bool:
        """Step every loop, run every job, give every answer; True when anything happened."""
        moved = False
        for machine in self.machines:
            if machine.worker is None:
                machine.bury()
        if not self.running():  # two processes of one name may both have met a newer one
            self.machines[0].start(self.at)
        for machine in list(self.machines):
            for role in ("ingress", "core", "continuation"):
                if machine.worker is not None:
                    moved |= self.step(machine, role)
            for pool in machine.pools:
                while pool.jobs:
                    pool.run_one()
                    moved = True
        return bool(self.outside.answer_all()) or moved
