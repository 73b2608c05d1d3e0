"""The verdict on a simulated run: the invariants of DESIGN section 10, checked against the log, the tables and an undisturbed run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from schemas import codec, facts, limits
from schemas.envelopes import DeadLetter, ExecutionOutcome, ProviderCompletion, Refusal
from schemas.identity import home_partition, interaction_id, parse_interaction_id
from schemas.names import Names
from schemas.topics import CHANGELOG_DELETE_RETENTION_MS
from state.execution import ExecutionRecord, ExecutionStatus
from state.folding import encode_row
from state.item import ItemRecord, ItemStatus
from state.keys import PREFIXES, execution_key, item_key, prefix_span, unit_key
from state.tables.memory import MemoryStore, MemoryStoreFactory
from state.unit import UnitRecord
from streams.author.suffixes import Suffix
from streams.clock import ManualClock
from streams.doors.submissions import send
from streams.engine.restore import Restore
from streams.log.memory.log import MemoryLog
from streams.log.seam import Record, TopicPartition
from streams.simulation.ledger import Ledger, Violation
from streams.simulation.machines import QuietMetrics, consumer_of, is_idle, task_insides
from streams.simulation.outside import Outside, Sent
from streams.simulation.scenario import OUTPUT_TOPIC, Scenario
from streams.testing.inline_pool import InlinePool
from streams.worker.assembly import Assembly
from streams.worker.topics import ensure_topics, verify_topics
from topologies.pipeline.ends import ObjectOutput, TopicOutput
from topologies.pipeline.model import Pipeline

if TYPE_CHECKING:
    from streams.simulation.world import World


def check(world: World) -> None:
    """Everything, at the end."""
    world.ledger.follow()
    check_tables(world)
    check_restore(world)
    world.log.compact()
    check_restore(world)
    check_endings(world)
    check_requests(world)
    check_answers(world)
    check_items(world)
    check_undisturbed(world)


# --- reading ---------------------------------------------------------------------------------------------------------


def records(log: MemoryLog, topic: str) -> list[Record]:
    """Every committed record that the topic still has."""
    partitions = [TopicPartition(topic, number) for number in range(log.topics([topic], 1)[topic].partitions)]
    reader = log.reader()
    reader.assign(log.start_offsets(partitions, 1))
    return reader.poll(1_000_000, 0)


# --- tables ----------------------------------------------------------------------------------------------------------


def check_tables(world: World) -> None:
    """The rows of every running task are what its partition's facts fold to."""
    ledger = world.ledger
    ledger.follow()
    folded = encoded(world)
    for machine in world.running():
        assert machine.worker is not None
        loop = machine.worker.loops["core"]
        consumer = consumer_of(loop)
        if consumer is None or not is_member(world, consumer):
            continue
        for task in machine.tasks:
            store, _, _ = task_insides(task)
            compare(f"the tables of {machine.name}[{task.partition}]", rows_of(store), folded.get(task.partition, {}))


def is_member(world: World, consumer: Any) -> bool:
    """Whether a consumer owns what it thinks it owns."""
    group = world.log._broker.group(consumer.group)  # noqa: SLF001 - what no client may ask
    return consumer.member_id in group.members and group.generation == consumer._generation and not group.rebalancing  # noqa: SLF001


def encoded(world: World) -> dict[int, dict[bytes, bytes]]:
    """Folded rows by partition, as they are stored."""
    found: dict[int, dict[bytes, bytes]] = {}
    partitions = world.scenario.pipeline.partitions
    for key, record in world.ledger.rows.by_key.items():
        execution_id = key[2:].decode().split(".")[0]
        found.setdefault(home_partition(execution_id, partitions), {})[key] = encode_row(record)
    return found


def rows_of(store: Any) -> dict[bytes, bytes]:
    """Every row of a store."""
    return {key: value for prefix in PREFIXES.values() for key, value in store.scan(*prefix_span(prefix))}


def compare(what: str, found: dict[bytes, bytes], wanted: dict[bytes, bytes]) -> None:
    """Equal, or say where not."""
    if found == wanted:
        return
    keys = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
    raise Violation(
        f"{what} are not what the facts say: {keys[0]!r} is {found.get(keys[0])!r}, not {wanted.get(keys[0])!r} ({len(keys)} rows)"
    )


def check_restore(world: World) -> None:
    """A fresh store, restored from the changelogs, is the same too."""
    folded = encoded(world)
    for partition in range(world.scenario.pipeline.partitions):
        restored = MemoryStore()
        restore = Restore(
            world.log,
            restored,
            topics=world.changelogs(),
            partition=partition,
            clock=world.clock,
            delete_retention_ms=CHANGELOG_DELETE_RETENTION_MS,
            reopen=MemoryStore,
        )
        if not restore.step(1):
            raise Violation(f"the restore of partition {partition} does not end: {restore.waiting_for}")
        compare(f"the restored tables of partition {partition}", rows_of(restored), folded.get(partition, {}))


def check_waiting(world: World) -> None:
    """No execution waits without a timer, local work or a session."""
    for machine in world.running():
        for task in machine.tasks:
            if not is_idle(task) or any(pool.is_busy for pool in machine.pools):
                continue
            assert machine.worker is not None
            loop = machine.worker.loops["core"]
            consumer = consumer_of(loop)
            if loop._pending or consumer is None or not is_member(world, consumer):  # noqa: SLF001
                continue
            _check_waiting(world, task)


def _check_waiting(world: World, task: Any) -> None:
    store, sessions, timers = task_insides(task)
    armed = {key[2:].decode().split(".")[0] for key in timers._due}  # noqa: SLF001
    serving = {session.execution_id for session in sessions.values() if session.is_ended or session.stream is not None}
    for key, _ in store.scan(*prefix_span("e")):
        execution: ExecutionRecord | None = world.ledger.rows.get(key)
        if execution is not None and not execution.is_terminal and execution.execution_id not in armed | serving:
            raise Violation(f"{execution.execution_id} ({execution.status}) waits for nothing")


# --- rest ------------------------------------------------------------------------------------------------------------


def is_consumed(world: World) -> bool:
    """Whether every input of every role was consumed to its end."""
    pipeline, names = world.scenario.pipeline, world.names
    inputs = {
        "core": (names.commands, names.completions),
        "ingress": pipeline.response_topics,
        "continuation": (names.continuations,),
    }
    for role, topics in inputs.items():
        committed = world.log._broker.group(names.group(role)).committed  # noqa: SLF001
        for topic in topics:
            for number in range(pipeline.partitions):
                at = TopicPartition(topic, number)
                left = world.log._broker.partition(at)  # noqa: SLF001
                if (
                    left.records
                    and left.records[-1].offset not in left.aborted
                    and committed.get(at, 0) <= left.records[-1].offset
                ):
                    return False
    return True


def trim(world: World, role: str, topics: tuple[str, ...]) -> None:
    """Drop what a group has consumed."""
    committed = world.log._broker.group(world.names.group(role)).committed  # noqa: SLF001
    for at, offset in committed.items():
        if at.topic in topics:
            world.log.trim(at, offset)


def describe_open(world: World) -> str:
    """What has not ended."""
    rows = world.ledger.rows
    lines = [f"consumed: {is_consumed(world)}"]
    for execution_id in world.scenario.submissions:
        if execution_id in world.ledger.ended:
            continue
        execution = world.ledger.execution(execution_id)
        unit = (
            rows.get(unit_key(execution.await_unit_id)) if execution is not None and execution.await_unit_id else None
        )
        lines.append(f"{execution}\n      {unit}")
    return "\n      ".join(lines)


def check_endings(world: World) -> None:
    """Executions end as the scenario lets them; a dead one is in the dead letters, once."""
    letters = [
        value
        for record in records(world.log, world.names.dlq)
        if isinstance(value := codec.decode(record.value), DeadLetter)
    ]
    dead = Counter(letter.execution_id for letter in letters if letter.kind == "execution")
    for execution_id, ending in world.ledger.ended.items():
        match ending:
            case facts.RunFailed():
                _check_failure(world, ending)
                if dead[execution_id] != 1:
                    raise Violation(f"{ending} has {dead[execution_id]} dead letters")
            case facts.RunCancelled() if execution_id not in world.cancelled:
                raise Violation(f"{ending}, and nobody asked for it")
            case _:
                if dead[execution_id]:
                    raise Violation(f"{ending} has a dead letter")
    replies = Counter(
        (reply.execution_id, reply.status)
        for record in records(world.log, world.names.replies)
        if isinstance(reply := codec.decode(record.value), ExecutionOutcome)
    )
    for execution_id in world.ledger.ended:
        execution = _execution(world.ledger, execution_id)
        told = [status for name, status in replies.elements() if name == execution_id]
        if told != [execution.status]:
            raise Violation(f"{execution_id} ended as {execution.status}, and doors were told {told}")
    if any(letter.reason == "not-committable" for letter in letters):
        raise Violation(f"a dead letter is not-committable: {letters}")


def _check_failure(world: World, ending: facts.RunFailed) -> None:
    scenario, ledger = world.scenario, world.ledger
    broken = ending.execution_id in scenario.lost_items
    expired = any(iid.startswith(ending.execution_id) for iid in ledger.timed_out)
    lost = [
        fact
        for fact in ledger.facts
        if isinstance(fact, facts.TerminalPublicationFailed) and fact.execution_id == ending.execution_id
    ]
    allowed = {
        "AWAIT_TIMEOUT": expired,
        "AWAIT_ITEM_CONTINUATION_FAILED": broken or scenario.stalls,
        "STEP_FAILED": broken or scenario.stalls,
        "CALL_TIMEOUT": scenario.stalls or len(lost) >= limits.PUBLICATION_ATTEMPTS_MAX - 1,
    }
    if not allowed.get(ending.error_code):
        raise Violation(f"{ending} was not to be expected")
    if "CONTINUATION_LOST" in ending.error_message:
        raise Violation(f"{ending}: an agent was there")


# --- requests and answers ----------------------------------------------------------------------------------------------


def check_requests(world: World) -> None:
    """Exactly one request record for each dispatched interaction, none where a held answer made it unnecessary."""
    outside = world.outside
    outside.look()
    refused = {
        interaction_id(f.unit_id, f.item_index) for f in world.ledger.facts if isinstance(f, facts.CompletionRefused)
    }
    for iid, fact in world.ledger.dispatched.items():
        sent = outside.requests.get((iid, fact.attempt), 0)
        wanted = {1} if fact.requested else ({0, 1} if iid in refused else {0})
        if sent not in wanted:
            raise Violation(f"{iid} has {sent} request records (requested {fact.requested}, refused {iid in refused})")
        if not fact.requested and not sent and iid not in world.ledger.admitted and iid not in world.ledger.timed_out:
            unit: UnitRecord = world.ledger.rows.get(unit_key(fact.unit_id))
            if unit.is_open:
                raise Violation(f"{iid} was never asked, its held answer never judged")
    for (iid, attempt), count in outside.requests.items():
        if iid not in world.ledger.dispatched or count != 1:
            raise Violation(f"{iid} has {count} request records of attempt {attempt}")


def check_answers(world: World) -> None:
    """Every answer that was sent has exactly one outcome."""
    refusals: dict[tuple[str, int, int], list[Refusal]] = {}
    for record in records(world.log, world.names.refusals):
        refusal = codec.decode(record.value)
        assert isinstance(refusal, Refusal)
        if not refusal.origin_topic:
            raise Violation(f"{refusal} does not say where the answer came in")
        refusals.setdefault((refusal.origin_topic, refusal.origin_partition, refusal.origin_offset), []).append(refusal)
    dead = Counter(
        (letter.origin_topic, letter.origin_partition, letter.origin_offset)
        for record in records(world.log, world.names.dlq)
        if isinstance(letter := codec.decode(record.value), DeadLetter) and letter.kind == "record"
    )
    stored_at = _stored_at(world)
    for origin, sent in world.outside.sent.items():
        refused = refusals.get(origin, [])
        if sent.expects == "dead":
            if dead[origin] != 1 or refused:
                raise Violation(f"{sent} at {origin} has {dead[origin]} dead letters and {len(refused)} refusals")
            continue
        if dead[origin] or len(refused) > 1 or (sent.expects == "refused" and not refused):
            raise Violation(f"{sent} at {origin} has {dead[origin]} dead letters and {len(refused)} refusals")
        if not refused and not _is_taken(world, sent):
            raise Violation(f"{sent} at {origin} has no outcome")
        if sent.proven and not world.jumped_back:
            _check_on_time(world, sent, stored_at.get(origin), refused)


def _stored_at(world: World) -> dict[tuple[str, int, int], int]:
    """When each answer reached `completions`."""
    found: dict[tuple[str, int, int], int] = {}
    for record in records(world.log, world.names.completions):
        completion = codec.decode(record.value)
        if isinstance(completion, ProviderCompletion):
            found[completion.origin_topic, completion.origin_partition, completion.origin_offset] = record.timestamp_ms
    return found


def _is_taken(world: World, sent: Sent) -> bool:
    """Admitted, the same as what was admitted, or held."""
    ledger = world.ledger
    known = [held.answer for held in ledger.held.get(sent.interaction_id, ())]
    admitted = ledger.admitted.get(sent.interaction_id)
    if (
        admitted is not None and sent.interaction_id not in ledger.timed_out
    ):  # else it is the step's own value, nobody's answer
        known.append(admitted.completion if admitted.answer is None else admitted.answer)
    kind = world.scenario.pipeline.await_step(parse_interaction_id(sent.interaction_id).step_index).answer_type
    try:
        mine = kind.to_json(kind.validate_json(msgspec.json.encode(sent.value)))
    except ValueError:
        return False
    return any(kind.same(kind.to_json(kind.validate_json(other)), mine) for other in known)


def _check_on_time(world: World, sent: Sent, stored_at_ms: int | None, refused: list[Refusal]) -> None:
    """An answer that was on `completions` before the deadline is never late (policy 2)."""
    dispatched = world.ledger.dispatched.get(sent.interaction_id)
    if dispatched is None or stored_at_ms is None:
        return
    on_time = stored_at_ms < dispatched.deadline_ms
    late = not refused or refused[0].reason == "late"
    if (
        on_time
        and late
        and sent.interaction_id in world.ledger.timed_out
        and sent.interaction_id not in world.ledger.held
    ):
        raise Violation(
            f"{sent} was there at {stored_at_ms}, the deadline was {dispatched.deadline_ms}, and it timed out"
        )


# --- outputs -----------------------------------------------------------------------------------------------------------


def check_items(world: World) -> None:
    """What is stored for an item is what its suffix makes of its completion, and of nothing else."""
    author, pipeline = world.scenario.author, world.scenario.pipeline
    for what, iid in list(world.ledger.seen):
        if what != "continued":
            continue
        unit_id, _, index = iid.rpartition(".")
        item: ItemRecord = world.ledger.rows.get(item_key(unit_id, int(index)))
        admitted = world.ledger.admitted.get(iid)
        if item.status is not ItemStatus.SUCCEEDED:
            raise Violation(f"{item} was continued")
        if admitted is None:
            if item.outputs or iid not in world.ledger.timed_out:
                raise Violation(f"{item} was never answered")
            continue
        author.calls.clear()
        author.calls.update({("suffix", *_place(admitted.completion)): author.ALWAYS})
        wanted = Suffix(pipeline, int(unit_id.rsplit(".", 1)[1])).run(admitted.completion)
        if item.outputs != wanted:
            raise Violation(f"{item} should hold {wanted}")


def _place(completion: bytes) -> tuple[str, int]:
    value = msgspec.json.decode(completion)
    return value["name"], value["index"]


class Outcome(msgspec.Struct):
    """What one execution left behind."""

    status: ExecutionStatus
    result: bytes | None
    lines: list[bytes]
    file: bytes | None


def outcome(scenario: Scenario, log: MemoryLog, execution: ExecutionRecord, written: dict[str, list[bytes]]) -> Outcome:
    """Collect it."""
    del log
    output = scenario.pipeline.output
    file: bytes | None = None
    if isinstance(output, ObjectOutput):
        path = output.location / f"{execution.execution_id}.out"
        file = path.read_bytes() if path.exists() else None
        if execution.status is ExecutionStatus.SUCCEEDED and execution.outputs != [str(path)]:
            raise Violation(f"{execution.execution_id} says it published {execution.outputs}")
    return Outcome(execution.status, execution.result, sorted(written.get(execution.execution_id, [])), file)


def written_lines(scenario: Scenario, log: MemoryLog) -> dict[str, list[bytes]]:
    """Records of the output topic by execution."""
    found: dict[str, list[bytes]] = {}
    if isinstance(scenario.pipeline.output, TopicOutput):
        for record in records(log, OUTPUT_TOPIC):
            found.setdefault((record.key or b"").decode(), []).append(record.value or b"")
    return found


def check_undisturbed(world: World) -> None:
    """An undisturbed run on the other path, given the same answers, ends with the same outputs, byte for byte."""
    succeeded = [
        execution_id for execution_id, ending in world.ledger.ended.items() if isinstance(ending, facts.RunSucceeded)
    ]
    written = written_lines(world.scenario, world.log)
    for execution_id in world.scenario.submissions:
        if execution_id not in succeeded:
            _check_unfinished(world, execution_id, written)
    if not succeeded:
        return
    scenario = _other_path(world.scenario)
    other = _Undisturbed(scenario, world.ledger, succeeded)
    other.run()
    calm = written_lines(scenario, other.log)
    for execution_id in succeeded:
        mine = outcome(world.scenario, world.log, _execution(world.ledger, execution_id), written)
        theirs = outcome(scenario, other.log, _execution(other.ledger, execution_id), calm)
        if mine != theirs:
            ending = other.ledger.ended[execution_id]
            raise Violation(f"{execution_id} ended as {mine}; undisturbed, on the other path, as {theirs} ({ending})")


def _check_unfinished(world: World, execution_id: str, written: dict[str, list[bytes]]) -> None:
    """An execution that did not succeed published no object, and only outputs of its finished items."""
    execution = _execution(world.ledger, execution_id)
    found = outcome(world.scenario, world.log, execution, written)
    stored = Counter(
        payload
        for fact in world.ledger.facts
        if isinstance(fact, facts.ContinuationCompleted) and fact.execution_id == execution_id
        for payload in fact.outputs
    )
    if found.lines and Counter(found.lines) - stored:
        raise Violation(f"{execution_id} ({execution.status}) wrote {found.lines}, its items made {stored}")


def _execution(ledger: Ledger, execution_id: str) -> ExecutionRecord:
    found: ExecutionRecord = ledger.rows.get(execution_key(execution_id))
    return found


def _other_path(scenario: Scenario) -> Scenario:
    """The same scenario with live and suspending swapped."""
    pipeline = scenario.pipeline
    steps = tuple(
        replace(step, live=not step.live) if step in pipeline.await_steps else step for step in pipeline.steps
    )
    output = pipeline.output
    if isinstance(output, ObjectOutput):
        output = replace(output, location=Path(f"{output.location}-undisturbed"))
    return replace(scenario, pipeline=replace(pipeline, steps=steps, output=output), silence=0.0)


class _Undisturbed:
    """One machine, no trouble, the answers of another run."""

    def __init__(self, scenario: Scenario, answers: Ledger, executions: list[str]) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(clock=self.clock)
        self._scenario = scenario
        self._answers = answers
        self._executions = executions
        pipeline: Pipeline = scenario.pipeline
        ensure_topics(pipeline, self.log)
        self._worker = Assembly(
            pipeline=pipeline,
            log=self.log,
            clock=self.clock,
            stores=MemoryStoreFactory(),
            instance="undisturbed",
            static=True,
            topic_ids=verify_topics(pipeline, self.log),
            metrics=QuietMetrics(),
            make_pool=lambda: InlinePool(self.clock),
        ).build()
        self.ledger = Ledger(scenario, self.log, Names.of(pipeline.app), lambda _text: None)
        self._outside = Outside(scenario, self.log, Random(1), lambda _text: None)  # noqa: S311 - not used for anything secret

    def run(self) -> None:
        """To the end."""
        self._scenario.author.reset()
        producer = self.log.plain_producer()
        for execution_id in self._executions:
            send(self._scenario.pipeline, producer, self._scenario.submissions[execution_id], timeout_s=1)
        quiet, pause_ms = 0, 100
        for _ in range(2_000):
            moved = False
            for loop in self._worker.loops.values():
                moved |= loop.step()
            moved |= any(pool.is_busy for pool in self._worker.pools)
            moved |= self._answer()
            self.ledger.follow()
            if all(execution_id in self.ledger.ended for execution_id in self._executions):
                return
            quiet = 0 if moved else quiet + 1
            if quiet > 2:
                self.clock.advance(pause_ms)
                pause_ms = min(pause_ms * 2, 30_000)
            elif moved:
                pause_ms = 100
        raise Violation(f"the undisturbed run does not come to rest: {self.ledger.rows.by_key}")

    def _answer(self) -> bool:
        self._outside.look()
        open_, self._outside.open = self._outside.open, []
        for iid in open_:
            admitted = self._answers.admitted.get(iid)
            if admitted is not None and iid not in self._answers.timed_out:
                asked = self._outside.asked[iid]
                value = msgspec.json.decode(admitted.completion if admitted.answer is None else admitted.answer)
                self._outside._send(asked.step, iid, value, asked.request.resume_token, "judged", proven=True)  # noqa: SLF001
        return bool(open_)
