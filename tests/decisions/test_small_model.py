"""Every order of events of small scenarios: what must always hold, holds (DESIGN 10)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from schemas.facts import BoundaryCompletionAdmitted
from state import unit
from state.interaction import InteractionStatus
from tests.decisions import small_model
from tests.decisions.given import NO, TO_OBJECT, TO_TOPIC, scalar, stream, stream_to_total
from tests.decisions.small_model import Scenario, explore
from topologies.decisions import admission, continuation, dispatch, ending, timeout
from topologies.decisions.decision import Append, Decisions, NoOp, Request
from topologies.pipeline.steps import DeadLetterAndSkip, Skip, Value


def troubles(**budget: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(budget.items()))


SCENARIOS = {
    "scalar": Scenario(
        scalar(), None, troubles(duplicate=1, conflict=1, takeover=1, cancel=1, segment=1), deadlines=True
    ),
    "scalar, early": Scenario(scalar(TO_OBJECT), None, troubles(early=1, duplicate=1, takeover=1, publish=1)),
    "scalar, value": Scenario(
        scalar(on_timeout=Value(json=NO)), None, troubles(duplicate=1, takeover=1), deadlines=True
    ),
    "empty stream": Scenario(stream(), 0, troubles(takeover=1, cancel=1, segment=1)),
    "one item, live": Scenario(
        stream(TO_OBJECT),
        1,
        troubles(duplicate=1, conflict=1, early=1, takeover=1, cancel=1, suffix=1, segment=1),
        deadlines=True,
        idles=True,
    ),
    "live": Scenario(stream(TO_TOPIC), 2, troubles(takeover=1, duplicate=1, suffix=1), idles=True),
    "live, deadlines": Scenario(stream(), 2, troubles(takeover=1, cancel=1), deadlines=True, idles=True),
    "live, left out": Scenario(
        stream(TO_TOPIC, on_timeout=Skip()), 2, troubles(eviction=1), deadlines=True, idles=True
    ),
    "live, value": Scenario(stream(on_timeout=Value(json=NO)), 2, troubles(takeover=1), deadlines=True, idles=True),
    "live, early": Scenario(stream(), 2, troubles(early=2, takeover=1), idles=True),
    "one worker without a session": Scenario(stream(TO_TOPIC), 2, troubles(eviction=1, suffix=2, repeat=1), idles=True),
    "suspending": Scenario(stream(live=False), 2, troubles(takeover=1, duplicate=1, suffix=1, repeat=1)),
    "suspending, lost": Scenario(stream(TO_TOPIC, live=False), 2, troubles(lost=1, takeover=1, repeat=1)),
    "suspending, one attempt": Scenario(stream(live=False, attempts=1), 2, troubles(suffix=1, takeover=1, cancel=1)),
    "live, one attempt": Scenario(
        stream(TO_TOPIC, attempts=1), 2, troubles(suffix=2, takeover=1, eviction=1), idles=True
    ),
    "live, failed ones left out": Scenario(
        stream(TO_TOPIC, attempts=2, on_error=DeadLetterAndSkip()), 2, troubles(suffix=3, takeover=1), idles=True
    ),
    "suspending, failed ones left out": Scenario(
        stream(live=False, attempts=1, on_error=DeadLetterAndSkip()), 2, troubles(suffix=2, repeat=1, takeover=1)
    ),
    "suspending, left out": Scenario(stream(live=False, on_timeout=Skip()), 2, troubles(conflict=1), deadlines=True),
    "three items, live": Scenario(
        stream(TO_TOPIC), 3, troubles(takeover=1, eviction=1, suffix=1, duplicate=1), idles=True
    ),
    "three items, suspending": Scenario(stream(TO_TOPIC, live=False), 3, troubles(takeover=1, suffix=1, repeat=1)),
    "two items, many troubles": Scenario(
        stream(TO_TOPIC, on_timeout=Value(json=NO)),
        2,
        troubles(takeover=1, suffix=1, early=1, segment=1),
        deadlines=True,
        idles=True,
    ),
    "to an aggregate": Scenario(stream_to_total(TO_OBJECT), 2, troubles(takeover=1, publish=1), idles=True),
}


EVERYTHING = Scenario(
    stream(TO_TOPIC, on_timeout=Value(json=NO)),
    2,
    troubles(takeover=1, eviction=1, suffix=1, repeat=1, early=1, segment=1, lost=1),
    deadlines=True,
    idles=True,
)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_every_order_of_events(scenario: Scenario) -> None:
    seen = explore(scenario)
    assert seen.endings["SUCCEEDED"]
    print(f"{seen.states} states, {seen.steps} steps, ends {dict(seen.endings)}")
    for trouble, name in (("takeover", "takeover"), ("cancel", "cancel"), ("early", "early"), ("lost", "continuation")):
        assert name in seen.events or not dict(scenario.budget).get(trouble)
    assert ("CANCELLED" in seen.endings) == bool(dict(scenario.budget).get("cancel"))
    fails = scenario.deadlines and scenario.pipeline.await_steps[0].on_timeout is None
    assert fails <= ("FAILED" in seen.endings)


@pytest.mark.slow
def test_every_order_of_everything() -> None:
    """Some 60,000 states."""
    assert explore(EVERYTHING).endings["SUCCEEDED"]


# --- planted bugs: the walk finds each of them -----------------------------------------------------------------------------------------------


def a_sweep_that_forgets(*args: Any, **options: Any) -> Decisions:
    return continuation.sweep(*args, **options)[-1:]


def an_end_that_closes_nothing(execution: Any, _unit: Any, **options: Any) -> Decisions:
    return ending.cancel(execution, None, **options)


def an_admission_that_offers_before_it_stores(*args: Any, **options: Any) -> Decisions:
    return [decision for decision in admission.admit(*args, **options) if not isinstance(decision, Append)]


def an_admission_that_forgets_the_first_answer(
    pipeline: Any, the_answer: Any, rows: admission.Standing, **options: Any
) -> Decisions:
    first = rows.interaction
    if first is not None and first.status is InteractionStatus.COMPLETED:
        first = msgspec.structs.replace(first, status=InteractionStatus.PENDING)
    return admission.admit(pipeline, the_answer, msgspec.structs.replace(rows, interaction=first), **options)


def an_outcome_that_counts_twice(
    pipeline: Any, result: Any, execution: Any, unit: Any, _item: Any, **options: Any
) -> Decisions:
    return continuation.complete_item(pipeline, result, execution, unit, None, **options)


def a_lost_continuation_that_nobody_misses(*_: Any, **__: Any) -> Decisions:
    return [NoOp("timer-outlived")]


def a_dispatch_that_asks_again(*args: Any, **options: Any) -> Decisions:
    decisions = dispatch.dispatch_items(*args, **options)
    return [*decisions, *(decision for decision in decisions if isinstance(decision, Request))]


def an_expiry_that_leaves_the_execution(*args: Any, **options: Any) -> Decisions:
    return timeout.expire(*args, **options)[:1]


@pytest.mark.parametrize(
    ("name", "bug", "scenario", "finding"),
    [
        ("sweep", a_sweep_that_forgets, "suspending", "nobody wakes"),
        ("cancel", an_end_that_closes_nothing, "one item, live", "leaves nothing open"),
        ("admit", an_admission_that_offers_before_it_stores, "live", "an output follows a stored answer"),
        ("admit", an_admission_that_forgets_the_first_answer, "suspending", "never admitted twice"),
        ("complete_item", an_outcome_that_counts_twice, "suspending", "not possible"),
        ("item_due", a_lost_continuation_that_nobody_misses, "suspending, lost", "nobody wakes"),
        ("dispatch_items", a_dispatch_that_asks_again, "live", "one request an item"),
        ("expire", an_expiry_that_leaves_the_execution, "scalar", "nobody wakes"),
    ],
)
def test_a_planted_bug_is_found(
    name: str, bug: Callable[..., Decisions], scenario: str, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_model, name, bug)
    with pytest.raises(AssertionError, match=finding):
        explore(SCENARIOS[scenario])


def test_one_counter_for_both_kinds_of_completion_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    evolving: dict[Any, Any] = unit._EVOLVE
    monkeypatch.setitem(evolving, (unit.UnitStatus.WAITING_EXTERNAL, BoundaryCompletionAdmitted), unit._continued)
    with pytest.raises(AssertionError, match="outputs never exceed"):
        explore(SCENARIOS["suspending"])


# --- longer streams, at random -----------------------------------------------------------------------------------------------------------------

LARGER = (
    ("cancel", 1),
    ("conflict", 2),
    ("duplicate", 2),
    ("early", 2),
    ("eviction", 1),
    ("lost", 2),
    ("repeat", 2),
    ("segment", 2),
    ("suffix", 4),
    ("takeover", 3),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@drawn(
    data=st.data(),
    items=st.integers(0, 6),
    live=st.booleans(),
    on_timeout=st.sampled_from([None, Skip(), Value(json=NO)]),
    on_error=st.sampled_from([None, Skip(), DeadLetterAndSkip()]),
    attempts=st.integers(1, 3),
)
def test_any_walk_through_a_longer_stream_ends_well(
    data: st.DataObject, items: int, live: bool, on_timeout: Any, on_error: Any, attempts: int
) -> None:
    """At most two thousand events lead from a submission to its end, whatever comes in between."""
    pipeline = stream(TO_TOPIC, live=live, on_timeout=on_timeout, on_error=on_error, attempts=attempts)
    scenario = Scenario(pipeline, items, LARGER, deadlines=on_timeout is not None, idles=True)
    world = small_model.World(scenario, dict(scenario.budget))
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(2_000):
        events = list(world.events())
        if not events:
            break
        _, happen = draw.choice(events)
        happen(world)
        world.settle()
        small_model.check(world)
    small_model.check_end(world)
    if world.here.the_execution.status == "SUCCEEDED":
        assert len(world.written) == items - (world.here.the_unit.skipped if items else 0)
