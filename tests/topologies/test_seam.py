"""The seam of the core: events in, decisions out. Each kind of event has one decider, each kind of decision one performer."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

import pytest

from streams.roles.core import deciders as deciders_module
from streams.roles.core import events
from streams.roles.core.deciders import Deciders
from streams.roles.core.events import CoreEvent
from streams.roles.core.performing import merged
from streams.roles.core.task import CoreTask
from streams.testing.driver import TopologyTestDriver
from topologies.decisions import decision as decisions_module
from topologies.decisions.decision import Append, Decision, NoOp


@pytest.fixture
def task(make: Any) -> CoreTask:
    driver: TopologyTestDriver = make("scalar")
    driver.run()
    found = next(iter(driver.worker.loops["core"].tasks.values()))
    assert isinstance(found, CoreTask)
    return found


def classes_of(module: Any) -> set[type]:
    return {each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__}


def test_every_class_of_the_events_module_is_an_event() -> None:
    assert set(get_args(CoreEvent)) == classes_of(events)


def test_every_class_of_the_decisions_module_is_a_decision() -> None:
    assert set(get_args(Decision)) == classes_of(decisions_module)


def test_each_kind_of_event_has_one_decider_that_takes_it(task: CoreTask) -> None:
    table = task.deciders.by_event()
    assert set(table) == set(get_args(CoreEvent))
    hints = {kind: get_type_hints(method, vars(deciders_module))["event"] for kind, method in table.items()}
    assert hints == {kind: kind for kind in table}
    methods = [name for name in vars(Deciders) if name.startswith("_on_")]
    assert len(methods) == len(table), "a method that no event leads to"


def test_each_kind_of_decision_has_one_performer(task: CoreTask) -> None:
    assert set(task.performers()) == set(get_args(Decision))


def test_two_performers_of_one_decision_are_refused() -> None:
    def perform(*_: Any) -> None:
        """Nothing."""

    assert set(merged({Append: perform}, {NoOp: perform})) == {Append, NoOp}
    with pytest.raises(AssertionError, match="two performers for Append"):
        merged({Append: perform}, {Append: perform})
