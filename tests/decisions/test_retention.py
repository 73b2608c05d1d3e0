"""What retention decides: kept, made a stub, deleted (DECISIONS 18)."""

from __future__ import annotations

import msgspec
import pytest

from state.execution import ExecutionRecord
from tests.decisions.given import NOW, failed, given, scalar, scalar_waiting, submitted, succeeded
from topologies.decisions.retention import CLOCKS_APART_MS, Fate, fate
from topologies.pipeline.model import Retention

RETENTION = Retention(facts_ms=1, executions_ms=1_000, keys_ms=5_000)
KEYS_MS = RETENTION.keys_ms + CLOCKS_APART_MS
ENDED = {"succeeded": succeeded(), "failed": failed()}


def ended(how: str, *, origin: str, ago_ms: int) -> ExecutionRecord:
    execution = given(scalar(), submitted(), ENDED[how]).the_execution
    return msgspec.structs.replace(execution, origin=origin, updated_at_ms=NOW - ago_ms)


def becomes(execution: ExecutionRecord) -> Fate:
    return fate(execution, RETENTION, now_ms=NOW)


@pytest.mark.parametrize("how", ENDED)
@pytest.mark.parametrize("origin", ["object", "topic", "checkpoint"])
def test_of_what_may_be_shown_again_a_stub_is_left(how: str, origin: str) -> None:
    assert becomes(ended(how, origin=origin, ago_ms=1_000)) is Fate.KEPT
    assert becomes(ended(how, origin=origin, ago_ms=1_001)) is Fate.BECOMES_STUB
    assert becomes(ended(how, origin=origin, ago_ms=KEYS_MS)) is Fate.BECOMES_STUB


@pytest.mark.parametrize("how", ENDED)
def test_what_a_person_submitted_is_deleted(how: str) -> None:
    assert becomes(ended(how, origin="person", ago_ms=1_000)) is Fate.KEPT
    assert becomes(ended(how, origin="person", ago_ms=1_001)) is Fate.DELETED


def test_a_stub_is_deleted_a_day_after_no_lister_takes_its_object_any_more() -> None:
    stub = msgspec.structs.replace(ended("failed", origin="object", ago_ms=KEYS_MS), forgotten=True)
    assert becomes(stub) is Fate.KEPT
    assert becomes(msgspec.structs.replace(stub, updated_at_ms=NOW - KEYS_MS - 1)) is Fate.DELETED


def test_what_is_open_is_kept_however_old() -> None:
    execution = given(scalar(), *scalar_waiting()).the_execution
    assert becomes(msgspec.structs.replace(execution, updated_at_ms=0)) is Fate.KEPT
