"""The world of one seed: machines, an outside party and a clock, and the moves that each of them can make.

A world judges nothing: `streams.simulation.run` makes its moves, `streams.simulation.watch` and `streams.simulation.verdict` look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from schemas.envelopes import CancelCommand
from schemas.errors import InstanceFenced
from schemas.names import Names
from schemas.topics import external_topic
from state.keys import execution_of_key
from streams.clock import ManualClock
from streams.doors.submissions import send
from streams.log.memory.log import MemoryLog
from streams.log.seam import TopicPartition
from streams.simulation.blackout import Blackout
from streams.simulation.broker_faults import BrokerFaults
from streams.simulation.coverage import ROLES_BY_WEIGHT, STEPS, Coverage
from streams.simulation.fleet import Fleet
from streams.simulation.folder import Folder
from streams.simulation.ledger import Ledger
from streams.simulation.machines import (
    Killed,
    Machine,
    consumer_of,
    group_of,
    partition_of,
    paused_of,
    transactional_id_of,
)
from streams.simulation.orders import Orders
from streams.simulation.outside import Outside
from streams.simulation.scenario import Say, Scenario, without_trace
from streams.simulation.times import Times
from streams.simulation.violation import Violation
from streams.worker.topics import ensure_topics
from topologies.pipeline.ends import ObjectSource, TopicSource


class World:
    """Everything there is in one run.

    Attributes:
        forgotten: Executions whose rows were seen to be gone.
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
        if scenario.senders_times:
            self._make_response_topics()
        ensure_topics(scenario.pipeline, self.log)
        self.fleet = Fleet(scenario, self.log, self.clock, self.rng, self.coverage, self.say)
        self.fleet.at = self.at
        self.ledger = Ledger(scenario, self.log, self.names, self.say)
        self.outside = Outside(scenario, self.log, self.rng, self.say)
        self.broker = BrokerFaults(self.log, self.names, self.rng, self.coverage, self.say)
        self.times = Times(
            scenario, self.clock, self.rng, self.coverage, self.say, next_deadline_ms=self.outside.next_deadline_ms
        )
        self.folder: Folder | None = None
        if isinstance(scenario.pipeline.source, ObjectSource):
            self.folder = Folder(scenario, self.clock, self.rng, self.coverage, self.say)
        self.orders: Orders | None = None
        if isinstance(scenario.pipeline.source, TopicSource):
            self.orders = Orders(scenario, self.log, self.rng, self.say)
        self.blackout = Blackout(
            scenario,
            self.fleet,
            self.log,
            self.outside,
            self.orders,
            self.ledger,
            self.rng,
            self.coverage,
            self.say,
        )
        self.doors = self.log.plain_producer()
        self.unsubmitted = list(scenario.submissions)
        self.cancelled: set[str] = set()
        self.forgotten: set[str] = set()
        self.before_step: Callable[[Machine, str, int], None] = lambda _machine, _role, _step: None
        self.violation: Violation | None = None
        self._armed: dict[str, tuple[int, str]] = {}
        self._is_peace = False
        self._moves = self._weighted_moves()

    def _make_response_topics(self) -> None:
        """As somebody made them who knew nothing of us: records carry their senders' times."""
        pipeline = self.scenario.pipeline
        topics = [
            external_topic(name, partitions=pipeline.partitions, replication_factor=1)
            for name in pipeline.response_topics
        ]
        self.log.create_topics(topics, 1)

    def say(self, text: str) -> None:
        """Add a line to the trace of the run."""
        self._say(text)

    def begin(self) -> None:
        """Start the first machine, with or without something to do."""
        if self.tracing:
            self.say(self.scenario.describe())
        self.scenario.author.reset()
        if self.folder is not None:
            self.folder.may_change_while_it_is_read(on=True)
        self.machines[0].start(self.at)
        if self.scenario.early or self.rng.random() < 0.5:
            self.submit()
        if self.rng.random() < 0.5:
            self._armed["continuation"] = self.rng.randint(1, STEPS), "kill"

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def is_broker_away(self) -> bool:
        """Whether the broker answers nobody."""
        return self.broker.is_away

    @property
    def is_over(self) -> bool:
        """Whether everything that was to be started was, and has ended."""
        is_taken = self.folder is None or self.folder.expected() <= self.ledger.ended.keys()
        return is_taken and self.ledger.is_over()

    def may_be_gone(self, key: bytes) -> bool:
        """Whether a row's execution ended so long ago that a worker may have deleted the row, or may do so soon."""
        execution = self.ledger.execution(execution_of_key(key))
        if execution is None or not execution.is_terminal:
            return False
        retention = self.scenario.pipeline.retention
        is_stub = key.startswith(b"e") and execution.origin != "person"
        kept_ms = retention.keys_ms if is_stub else retention.executions_ms
        return execution.updated_at_ms + kept_ms < self.times.latest_ms

    @property
    def is_between_steps(self) -> bool:
        """Whether no loop stands in the middle of a step."""
        return not self.fleet.stepping

    @property
    def machines(self) -> list[Machine]:
        """Every process that there is or was."""
        return self.fleet.machines

    def running(self) -> list[Machine]:
        """Machines that can be stepped now."""
        return self.fleet.running()

    # --- moves -------------------------------------------------------------------------------------------------------

    def _weighted_moves(self) -> tuple[list[Callable[[], None]], list[int]]:
        moves: list[tuple[Callable[[], None], int]] = [
            (self.step_some, 60),
            (self.step_all, 12),
            (self.run_job, 25),
            (self.hear_outside, 25),
            (self.times.pass_some, 12),
            (self.leave_answers, 3),
            (self.submit, 4),
            (self.arm_kill, 5),
            (self.arm_stall, 4 if self.scenario.machines > 1 else 2),
            (self.start_machine, 6),
            (self.broker.fail_commit, 4),
            (self.fleet.bury_some, 2),
            (self.broker.go_away, 2),
            (self.broker.compact, 6 if self.scenario.ages else 2),
            (self.broker.trim, 1),
            (self.fleet.keep_disk, 6 if self.scenario.ages else 2),
            (self.fleet.close_some, 1),
            (self.fleet.stall_some, 2 if self.scenario.machines > 1 else 0),
            (self.usurp, 1),
            (self.times.jump, 4 if self.scenario.jumps else 0),
            (self.fleet.set_clock, 4 if self.scenario.clocks_set else 0),
            (self.black_out, 4 if self.scenario.blackouts else 0),
            (self.age, 5 if self.scenario.ages else 0),
            (self.overstay, 3 if self.scenario.stalls else 0),
            (self.cancel, 2 if self.scenario.cancels else 0),
        ]
        if self.folder is not None:
            moves += [(self.folder.act, 20), (self.fleet.look_at_input, 25)]
        return [move for move, _ in moves], [weight for _, weight in moves]

    def move(self) -> None:
        """Make one move, drawn by weight."""
        moves, weights = self._moves
        self.rng.choices(moves, weights)[0]()
        self.broker.after_move()

    def step_some(self) -> None:
        """Step one loop of one machine, core loops more often than others."""
        running = self.running()
        if running:
            machine = self.rng.choice(running)
            self.step(machine, self.rng.choice([role for role in ROLES_BY_WEIGHT if role in machine.roles]))

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
        loop = machine.worker.loops.get(role)
        if loop is None:
            return False
        if role == "core" and not self.fleet.runs("ingress"):
            self.coverage.faults["core without ingress"] += 1
        self.fleet.stepping.append((machine, role))
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
            self.fleet.stepping.pop()

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
        if not self.broker.is_away:
            self.outside.act()

    def submit(self) -> None:
        """Submit the next execution, or one again."""
        if self.broker.is_away:
            return
        if self.orders is not None:
            self.orders.write()
            return
        if self.unsubmitted:
            execution_id = self.unsubmitted.pop(0)
        else:
            execution_id = self.rng.choice(sorted(self.scenario.submissions) or [""])
            by_hand = self.scenario.pipeline.source is None
            if not execution_id or (self.scenario.ages and by_hand and execution_id in self.ledger.ended):
                return  # forgotten, it would be another execution
        self.say(f"door: submits {execution_id}")
        send(self.scenario.pipeline, self.doors, self.scenario.submissions[execution_id], timeout_s=1)

    def cancel(self) -> None:
        """Cancel an execution."""
        if self.broker.is_away or self.rng.random() < 0.5 or not self.scenario.submissions:
            return
        execution_id = self.rng.choice(sorted(self.scenario.submissions))
        self.cancelled.add(execution_id)
        self.say(f"door: cancels {execution_id}")
        send(self.scenario.pipeline, self.doors, CancelCommand(execution_id, "no longer wanted"), timeout_s=1)

    def age(self) -> None:
        """Let so much time pass that what ended is forgotten; transactions and sessions that nobody keeps end meanwhile.

        Not while a command lies undecided: the topic keeps none for so long, and a second submission by hand would be another execution.
        """
        if self.broker.is_away or self._commands_wait():
            return
        self.times.age()
        self.fleet.bury_all()

    def _commands_wait(self) -> bool:
        committed = group_of(self.log, self.names.group("core")).committed
        partitions = [
            TopicPartition(self.names.commands, number) for number in range(self.scenario.pipeline.partitions)
        ]
        return any(
            record.offset >= committed.get(at, 0) for at in partitions for record in partition_of(self.log, at).records
        )

    def black_out(self) -> None:
        """Let everything be down, and the broker not be as it was."""
        if not self.broker.is_away and not self.fleet.stepping:
            self.blackout.happen()

    def leave_answers(self) -> None:
        """Answer, and let the deadline pass while only core loops go on: nobody takes the answer over."""
        if self.broker.is_away or self.fleet.stepping:
            return
        deadline_ms = self.outside.answer_one()
        if deadline_ms is None:
            return
        self.coverage.faults["answers left lying"] += 1
        self.coverage.faults["transaction open at a deadline"] += self.outside.has_open_transaction
        self.times.advance(max(deadline_ms + self.rng.choice((0, 1, 200, 5_000)) - self.clock.now_ms(), 0))
        for _ in range(self.rng.randint(1, 12)):
            running = self.running()
            if running:
                self.step(self.rng.choice(running), "core")

    # --- trouble -----------------------------------------------------------------------------------------------------

    def at(self, machine: Machine, step: int) -> None:
        """Called before each numbered step of a commit: look at it, then make the trouble that is armed for it."""
        role = self.fleet.stepping[-1][1]
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
                self.rng.choice((self.run_job, self.hear_outside, self.times.pass_some))()
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
        if not self.broker.is_away:
            self.fleet.start_some()

    def usurp(self) -> None:
        """Start a second process under a machine's name."""
        if not self.broker.is_away:
            self.fleet.usurp()

    # --- peace -------------------------------------------------------------------------------------------------------

    def make_peace(self) -> None:
        """Let nothing go wrong from now on, but for the kills that are armed and have not met their step."""
        self.say("--- peace ---")
        self._is_peace = True
        self._armed = {role: armed for role, armed in self._armed.items() if armed[1] == "kill"}
        self.broker.come_back()
        while self.unsubmitted or (self.orders is not None and self.orders.unwritten):
            self.submit()
        for machine in self.machines:
            machine.is_stalled = False
        self.fleet.bury_all()
        self.fleet.make_whole()
        if self.folder is not None:
            self.folder.finish()

    def round(self) -> bool:
        """Step every loop, run every job, give every answer; True when anything happened."""
        moved = False
        self.fleet.bury_all()
        self.fleet.make_whole()
        if self.folder is not None:
            self.fleet.look_at_input()
        for machine in list(self.machines):
            for role in ("ingress", "core", "continuation"):
                if machine.worker is not None:
                    moved |= self.step(machine, role)
            for pool in machine.pools:
                while pool.jobs:
                    pool.run_one()
                    moved = True
        return bool(self.outside.answer_all()) or moved
