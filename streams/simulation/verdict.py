"""The verdict on a simulated run: the invariants of DESIGN section 10, checked against the log, the tables and an undisturbed run."""

from __future__ import annotations

from collections import Counter

import msgspec

from schemas import codec, facts, limits
from schemas.envelopes import DeadLetter, ExecutionOutcome, Refusal
from schemas.identity import interaction_id, parse_interaction_id
from state.item import ItemRecord, ItemStatus
from state.keys import item_key, unit_key
from state.unit import UnitRecord
from streams.author.suffixes import Suffix
from streams.doors.outcomes import ENDED
from streams.simulation.ledger import records_of
from streams.simulation.outside import GONE, Origin, Sent
from streams.simulation.tables import check_restore, check_tables
from streams.simulation.undisturbed import check_undisturbed
from streams.simulation.violation import Breach, Violation
from streams.simulation.world import World


def check(world: World) -> None:
    """Check everything that must hold at the end of a run."""
    world.ledger.follow()
    check_tables(world)
    check_restore(world)
    world.log.compact()
    check_restore(world)
    check_endings(world)
    check_requests(world)
    check_answers(world)
    check_items(world)
    check_settled(world)
    check_letters(world)
    check_keys(world)
    check_objects(world)
    check_values(world)
    check_undisturbed(world.scenario, world.ledger, world.log, world.folder)


# --- endings -----------------------------------------------------------------------------------------------------------


def check_endings(world: World) -> None:
    """Executions end as the scenario lets them; a dead one is in the dead letters, once."""
    letters = [
        value
        for record in records_of(world.log, world.names.dlq)
        if isinstance(value := codec.decode(record.value), DeadLetter)
    ]
    dead = Counter(letter.execution_id for letter in letters if letter.kind == "execution")
    for execution_id, ending in world.ledger.ended.items():
        match ending:
            case facts.RunFailed():
                _check_failure(world, ending)
                if dead[execution_id] != 1:
                    raise Violation(Breach.DEAD_LETTERS_MISCOUNTED, f"{ending} has {dead[execution_id]} dead letters")
            case facts.RunCancelled() if execution_id not in world.cancelled:
                raise Violation(Breach.UNEXPECTED_ENDING, f"{ending}, and nobody asked for it")
            case _:
                if dead[execution_id]:
                    raise Violation(Breach.DEAD_LETTERS_MISCOUNTED, f"{ending} has a dead letter")
    replies = Counter(
        (reply.execution_id, reply.status)
        for record in records_of(world.log, world.names.replies)
        if record.value
        and isinstance(reply := codec.decode(record.value), ExecutionOutcome)
        and reply.status in ENDED
        and not reply.duplicate
    )
    for execution_id in world.ledger.ended:
        execution = world.ledger.execution(execution_id)
        assert execution is not None
        told = [status for name, status in replies.elements() if name == execution_id]
        if told != [execution.status]:
            raise Violation(
                Breach.OUTCOME_NOT_TOLD, f"{execution_id} ended as {execution.status}, and doors were told {told}"
            )
    if any(letter.reason == "not-committable" for letter in letters):
        raise Violation(Breach.EVENT_BLAMED, f"a dead letter is not-committable: {letters}")


def _check_failure(world: World, ending: facts.RunFailed) -> None:
    scenario, ledger = world.scenario, world.ledger
    broken = ending.execution_id in scenario.lost_items
    expired = any(iid.startswith(ending.execution_id) for iid in ledger.timed_out)
    lost = [
        fact
        for fact in ledger.facts
        if isinstance(fact, facts.TerminalPublicationFailed) and fact.execution_id == ending.execution_id
    ]
    path = scenario.submissions[ending.execution_id].source_path
    is_touched = world.folder is not None and path in world.folder.touched
    allowed = {
        "AWAIT_TIMEOUT": expired,
        "AWAIT_ITEM_CONTINUATION_FAILED": broken or scenario.stalls,
        "STEP_FAILED": broken or scenario.stalls or is_touched,
        "SOURCE_CHANGED": is_touched,
        "CALL_TIMEOUT": scenario.stalls or len(lost) >= limits.PUBLICATION_ATTEMPTS_MAX - 1,
    }
    if not allowed.get(ending.error_code):
        raise Violation(Breach.UNEXPECTED_ENDING, f"{ending} was not to be expected")
    if "CONTINUATION_LOST" in ending.error_message:
        raise Violation(Breach.UNEXPECTED_ENDING, f"{ending}: an agent was there")


# --- requests and answers ----------------------------------------------------------------------------------------------


def check_requests(world: World) -> None:
    """Exactly one request record for each dispatched interaction, none where a held answer made it unnecessary."""
    outside = world.outside
    outside.look()
    for iid, fact in world.ledger.dispatched.items():
        sent = outside.requests.get((iid, fact.attempt), 0)
        wanted = int(fact.requested or iid in world.ledger.asked_late)
        if sent != wanted:
            raise Violation(
                Breach.REQUESTS_MISCOUNTED,
                f"{iid} has {sent} request records, not {wanted} (requested {fact.requested})",
            )
        if not fact.requested and not sent and iid not in world.ledger.admitted and iid not in world.ledger.timed_out:
            unit: UnitRecord = world.ledger.rows.get(unit_key(fact.unit_id))
            if unit.is_open:
                raise Violation(Breach.HELD_ANSWER_FORGOTTEN, f"{iid} was never asked, its held answer never judged")
    for (iid, attempt), count in outside.requests.items():
        if iid not in world.ledger.dispatched or count != 1:
            raise Violation(Breach.REQUESTS_MISCOUNTED, f"{iid} has {count} request records of attempt {attempt}")


def check_answers(world: World) -> None:
    """Every answer that was sent has exactly one outcome."""
    refusals: dict[tuple[str, int, int], list[Refusal]] = {}
    for record in records_of(world.log, world.names.refusals):
        refusal = codec.decode(record.value)
        assert isinstance(refusal, Refusal)
        if not refusal.origin_topic:
            raise Violation(Breach.ORIGIN_UNKNOWN, f"{refusal} does not say where the answer came in")
        refusals.setdefault((refusal.origin_topic, refusal.origin_partition, refusal.origin_offset), []).append(refusal)
    dead = Counter(
        (letter.origin_topic, letter.origin_partition, letter.origin_offset)
        for record in records_of(world.log, world.names.dlq)
        if isinstance(letter := codec.decode(record.value), DeadLetter) and letter.kind == "record"
    )
    for origin, sent in world.outside.sent.items():
        if GONE in origin[0] or origin in world.outside.ambiguous:
            continue
        refused = refusals.get(origin, [])
        if world.blackout.is_reread:  # and judged once more
            refused = refused[:1]
            dead[origin] = min(dead[origin], 1)
        if sent.expects == "dead":
            if dead[origin] != 1 or refused:
                raise Violation(
                    Breach.ANSWER_MISJUDGED,
                    f"{sent} at {origin} has {dead[origin]} dead letters and {len(refused)} refusals",
                )
            continue
        if dead[origin] or len(refused) > 1 or (sent.expects == "refused" and not refused):
            raise Violation(
                Breach.ANSWER_MISJUDGED,
                f"{sent} at {origin} has {dead[origin]} dead letters and {len(refused)} refusals",
            )
        if not refused and not _is_taken(world, sent):
            raise Violation(Breach.ANSWER_WITHOUT_OUTCOME, f"{sent} at {origin} has no outcome")
        if sent.proven and not world.times.clock_was_set:
            _check_on_time(world, sent, refused)
    if not world.times.clock_was_set:
        _check_lateness(world, refusals)


def _is_taken(world: World, sent: Sent) -> bool:
    """Whether an answer was admitted, is the same as what was admitted, or is held."""
    ledger = world.ledger
    known = [held.answer for held in ledger.held.get(sent.interaction_id, ())]
    admitted = ledger.admitted.get(sent.interaction_id)
    if (
        admitted is not None and sent.interaction_id not in ledger.timed_out
    ):  # else it is the step's own value, nobody's answer
        known.append(admitted.completion if admitted.answer is None else admitted.answer)
    kind = world.scenario.pipeline.await_step(parse_interaction_id(sent.interaction_id).step_index).answer_type
    try:
        mine = kind.to_json(kind.read(msgspec.json.encode(sent.value)))
    except ValueError:
        return False
    return any(kind.same(kind.to_json(kind.read(other)), mine) for other in known)


def _check_on_time(world: World, sent: Sent, refused: list[Refusal]) -> None:
    """An answer that was on its response topic before the deadline is never late, however late we took it over (policy 2)."""
    dispatched = world.ledger.dispatched.get(sent.interaction_id)
    if dispatched is None:
        return
    on_time = sent.at_ms < dispatched.deadline_ms
    late = not refused or refused[0].reason == "late"
    if (
        on_time
        and late
        and sent.interaction_id in world.ledger.timed_out
        and sent.interaction_id not in world.ledger.held
    ):
        raise Violation(
            Breach.TIMED_OUT_IN_TIME,
            f"{sent} was there in time, the deadline was {dispatched.deadline_ms}, and it timed out",
        )


def _check_lateness(world: World, refusals: dict[Origin, list[Refusal]]) -> None:
    """Where the broker says when an answer came in, that decides; else none is late before the deadline rings."""
    ledger, late = world.ledger, Counter[str]()
    for origin, sent in world.outside.sent.items():
        dispatched = ledger.dispatched.get(sent.interaction_id)
        is_late = dispatched is not None and sent.at_ms >= dispatched.deadline_ms
        if is_late and any(refusal.reason == "late" for refusal in refusals.get(origin, ())):
            late[sent.interaction_id] += 1
    is_known = not world.blackout.is_reread and not world.outside.ambiguous
    for iid, count in ledger.late_while_open.items() if is_known else ():
        allowed = 0 if world.scenario.senders_times else late[iid]
        if count > allowed:
            raise Violation(
                Breach.REFUSED_IN_TIME, f"{iid}: {count} answers were late while it was open, {allowed} came in late"
            )
    if world.scenario.senders_times:
        return
    for iid, admitted in ledger.admitted.items():
        if iid in ledger.timed_out or iid in ledger.held:
            continue
        answers = [
            sent for sent in world.outside.sent.values() if sent.interaction_id == iid and _is_taken(world, sent)
        ]
        world.coverage.faults["came in late"] += any(
            sent.at_ms >= ledger.dispatched[iid].deadline_ms for sent in answers
        )
        if all(sent.at_ms >= ledger.dispatched[iid].deadline_ms for sent in answers):
            raise Violation(Breach.ADMITTED_TOO_LATE, f"{admitted} came in at {[sent.at_ms for sent in answers]}")


# --- outputs -----------------------------------------------------------------------------------------------------------


def check_items(world: World) -> None:
    """What is stored for an item is what its suffix makes of its completion, and of nothing else."""
    author, pipeline = world.scenario.author, world.scenario.pipeline
    for happening, iid in list(world.ledger.seen):
        if happening == "skipped":
            _check_left_out(world, iid)
        if happening != "continued":
            continue
        unit_id, _, index = iid.rpartition(".")
        item: ItemRecord = world.ledger.rows.get(item_key(unit_id, int(index)))
        admitted = world.ledger.admitted.get(iid)
        if item.status is not ItemStatus.SUCCEEDED:
            raise Violation(Breach.WRONG_ITEM_OUTPUT, f"{item} was continued")
        if admitted is None:
            raise Violation(Breach.WRONG_ITEM_OUTPUT, f"{item} was never answered")
        author.calls.clear()
        author.calls.update({("suffix", *_place(admitted.completion)): author.ALWAYS})
        wanted = Suffix(pipeline, int(unit_id.rsplit(".", 1)[1])).run(admitted.completion)
        if item.outputs != wanted:
            raise Violation(Breach.WRONG_ITEM_OUTPUT, f"{item} should hold {wanted}")


def _check_left_out(world: World, iid: str) -> None:
    """What expired or failed for good is left out, as its step says; nothing is stored for it."""
    unit_id, _, index = iid.rpartition(".")
    item: ItemRecord = world.ledger.rows.get(item_key(unit_id, int(index)))
    admitted = world.ledger.admitted.get(iid)
    failed = admitted is not None and _fails_of(admitted.completion) == world.scenario.author.ALWAYS
    if item.status is not ItemStatus.SKIPPED or item.outputs or not (failed or iid in world.ledger.timed_out):
        raise Violation(Breach.WRONG_ITEM_OUTPUT, f"{item} was left out")
    world.coverage.faults["item left out"] += 1


def _fails_of(completion: bytes) -> int:
    """How often the suffix of an item stumbles."""
    fails: int = msgspec.json.decode(completion).get("fails", 0)
    return fails


def check_settled(world: World) -> None:
    """A failed item stops nobody: when its execution ends for it, every other item is settled."""
    ledger = world.ledger
    for unit in ledger.rows.by_key.values():
        if not isinstance(unit, UnitRecord) or not unit.itemised:
            continue
        ending = ledger.ended.get(unit.execution_id)
        is_last = isinstance(ending, facts.RunFailed) and ending.error_code == "AWAIT_ITEM_CONTINUATION_FAILED"
        if is_last and unit.failed and not unit.settled == unit.dispatched == unit.source_count:
            raise Violation(Breach.ITEMS_ABANDONED, f"{ending}, with {unit}")


def check_letters(world: World) -> None:
    """One dead letter for each item that was left out with one, and none besides."""
    letters = Counter(
        (letter.interaction_id, letter.letter_id)
        for record in records_of(world.log, world.names.dlq)
        if isinstance(letter := codec.decode(record.value), DeadLetter) and letter.kind == "item"
    )
    wanted = Counter(
        (interaction_id(fact.unit_id, fact.item_index), fact.letter_id)
        for fact in world.ledger.facts
        if isinstance(fact, facts.ContinuationSkipped) and fact.letter_id is not None
    )
    world.coverage.faults["item letter"] += wanted.total()
    if letters != wanted:
        raise Violation(Breach.DEAD_LETTERS_MISCOUNTED, f"letters of items are {letters}, not {wanted}")


def check_keys(world: World) -> None:
    """Every idempotency key is the one that a plain count over the items of its unit gives."""
    counts: Counter[tuple[str, str]] = Counter()
    by_item = sorted(world.ledger.dispatched.values(), key=lambda fact: (fact.unit_id, fact.item_index or 0))
    for fact in by_item:
        step = world.scenario.pipeline.await_step(parse_interaction_id(f"{fact.unit_id}.0").step_index)
        request = msgspec.json.decode(fact.request)
        values = [f"{name}={request[name]}" for name in step.idempotency_key_fields]
        if values:
            base = ":".join((step.step_id, *values))
            counts[fact.unit_id, base] += 1
            number = counts[fact.unit_id, base]
            wanted = base if number == 1 else f"{base}:n={number}"
            world.coverage.faults["equal items"] += number > 1
        else:
            item = "" if fact.item_index is None else f":item={fact.item_index}"
            wanted = f"{fact.execution_id}:{step.step_id}{item}"
        if fact.idempotency_key != wanted:
            raise Violation(Breach.WRONG_KEY, f"{fact} should have the key {wanted}")


def check_values(world: World) -> None:
    """What the provider saw, and what was admitted of what it sent back, is what the author meant, in every field."""
    author = world.scenario.author
    read = [(fact, fact.request) for fact in world.ledger.dispatched.values()]
    answered = [
        (fact, fact.completion) for iid, fact in world.ledger.admitted.items() if iid not in world.ledger.timed_out
    ]
    for fact, payload in [*read, *answered]:
        said = msgspec.json.decode(payload)
        if not isinstance(said, dict) or said.get("extra") is None:
            continue
        meant, index = author.extra_of(said["index"]), said["index"]
        got = author.Extra.model_validate_json(msgspec.json.encode(said["extra"]))
        world.coverage.faults["value of many kinds"] += 1
        if got != meant or repr(got.ratio) != repr(meant.ratio) or author.told(got) != author.told(meant):
            raise Violation(Breach.WRONG_VALUE, f"{fact} says {got} for item {index}, and {meant} was meant")


def check_objects(world: World) -> None:
    """No row is asked for that does not stand in the submitted object, at its place; nothing is taken that was there for a moment."""
    if world.folder is None:
        return
    scenario, counts = world.scenario, Counter[str]()
    for execution_id, command in scenario.submissions.items():
        if command.source_sha256 in world.folder.unfinished:
            raise Violation(Breach.TAKEN_UNFINISHED, f"{execution_id} ran {command.source_path} as it was for a moment")
    for fact in world.ledger.dispatched.values():
        rows = scenario.items_of(fact.execution_id)
        counts[fact.execution_id] += 1
        request, index = msgspec.json.decode(fact.request), fact.item_index or 0
        if index >= len(rows) or any(request[name] != value for name, value in rows[index].items()):
            raise Violation(Breach.ROW_NOT_SUBMITTED, f"{fact} is not in what was submitted: {rows}")
    for execution_id, ending in world.ledger.ended.items():
        if isinstance(ending, facts.RunSucceeded) and counts[execution_id] != len(scenario.items_of(execution_id)):
            raise Violation(Breach.ITEMS_MISSING, f"{execution_id} asked for {counts[execution_id]} rows")


def _place(completion: bytes) -> tuple[str, int]:
    value = msgspec.json.decode(completion)
    return value["name"], value["index"]
