"""Ids are derived and route themselves; homes are those of Java's default partitioner (DESIGN 4)."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import identity
from schemas.errors import PeerError
from schemas.identity import (
    InteractionRef,
    execution_id,
    home_partition,
    interaction_id,
    murmur2,
    parse_interaction_id,
    unit_id,
)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "murmur2.json").read_text(encoding="utf-8"))
"""Printed by vectors/Murmur2Vectors.java, which calls Kafka's own Java client."""

EXECUTION = "3f0e6a4e-9f6b-5c1a-8a52-0d3c4cf6b7aa"


# --- homes -------------------------------------------------------------------------------------------------------------------------


def test_the_vectors_cover_all_lengths_and_scripts() -> None:
    keys = [vector["key"] for vector in VECTORS["vectors"]]
    assert {len(key.encode()) for key in keys} >= set(range(71))
    assert len([key for key in keys if not key.isascii()]) > 30
    assert {vector["murmur2"] < 0 for vector in VECTORS["vectors"]} == {True, False}


def test_murmur2_is_javas() -> None:
    for vector in VECTORS["vectors"]:
        assert murmur2(vector["key"].encode()) == vector["murmur2"] & 0xFFFFFFFF, vector["key"]


def test_home_partitions_are_javas() -> None:
    for vector in VECTORS["vectors"]:
        homes = [home_partition(vector["key"], count) for count in VECTORS["partitionCounts"]]
        assert homes == vector["partitions"], vector["key"]


def test_homes_are_spread_evenly() -> None:
    counts = [0] * 12
    for number in range(12_000):
        counts[home_partition(execution_id("default", "csv-payments", str(number)), 12)] += 1
    assert min(counts) > 850
    assert max(counts) < 1_150


# --- derived ids -------------------------------------------------------------------------------------------------------------------


def test_ids_are_part_of_the_format_and_never_change() -> None:
    """Stored executions, and submitters that know the rule, rely on these very values."""
    assert str(identity.NAMESPACE) == "8c9a4f0e-6a3d-5d0a-9d0e-6b61776d6974"
    assert execution_id("default", "csv-payments", "in/payments.csv") == str(
        uuid.uuid5(identity.NAMESPACE, "default\0csv-payments\0in/payments.csv")
    )
    assert execution_id("default", "csv-payments", "in/payments.csv") == PINNED


PINNED = "ea34b9c7-0fea-5602-9763-b3562e257e9d"


@pytest.mark.parametrize("other", [("b", "p", "k"), ("a", "q", "k"), ("a", "p", "l"), ("a", "pk", ""), ("ap", "", "k")])
def test_each_part_counts_and_parts_do_not_run_into_each_other(other: tuple[str, str, str]) -> None:
    assert execution_id("a", "p", "k") != execution_id(*other)


def test_the_same_submission_is_the_same_execution() -> None:
    assert execution_id("a", "p", "k") == execution_id("a", "p", "k")


def test_forms() -> None:
    unit = unit_id(EXECUTION, 3)
    assert unit == f"{EXECUTION}.3"
    assert interaction_id(unit, 0) == f"{EXECUTION}.3.0"
    assert interaction_id(unit, None) == f"{EXECUTION}.3.u"


# --- taking apart ------------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.one_of(st.uuids().map(str), st.text(min_size=1, max_size=60)),
    st.integers(0, 999_999_999),
    st.none() | st.integers(0, 999_999_999),
)
def test_what_was_put_together_comes_apart(execution: str, step: int, item: int | None) -> None:
    ref = parse_interaction_id(interaction_id(unit_id(execution, step), item))
    assert ref == InteractionRef(execution, step, item, unit_id(execution, step))
    assert ref.unit_id == unit_id(execution, step)


@settings(deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"\A[a-f0-9]{4}\.[0-9٠]{0,3}\.(u|[0-9]{0,10})\Z"))
def test_any_text_is_refused_or_is_the_one_spelling_of_its_interaction(text: str) -> None:
    try:
        ref = parse_interaction_id(text)
    except PeerError:
        return
    assert interaction_id(ref.unit_id, ref.item_index) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "...",
        "u",
        EXECUTION,
        f"{EXECUTION}.1",
        f".{1}.{2}",
        f"{EXECUTION}..1",
        f"{EXECUTION}.1.",
        f"{EXECUTION}.1.U",
        f"{EXECUTION}.u.1",
        f"{EXECUTION}.u.u",
        f"{EXECUTION}.1.uu",
        f"{EXECUTION}.-1.0",
        f"{EXECUTION}.1.-1",
        f"{EXECUTION}.+1.0",
        f"{EXECUTION}.1.01",
        f"{EXECUTION}.00.1",
        f"{EXECUTION}.1. 1",
        f"{EXECUTION}.1.1 ",
        f"{EXECUTION}.1.1\n",
        f"{EXECUTION}.1.1_0",
        f"{EXECUTION}.1.0x1",
        f"{EXECUTION}.1.1e3",
        f"{EXECUTION}.1.1.5e3",
        f"{EXECUTION}.1.٣",
        f"{EXECUTION}.²  .1",
        f"{EXECUTION}.1.１",
        f"{EXECUTION}.1.1000000000",
        f"{EXECUTION}.99999999999999999999.1",
        f"{EXECUTION}.1.{'9' * 5_000}",
        f"{'x' * 600}.1.1",
        f"{EXECUTION}\0.1.1\0",
    ],
)
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(PeerError, match="not an interaction id") as caught:
        parse_interaction_id(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("execution", ["a", "a.b", "a.1.2", "..", "zoë", " "])
def test_an_execution_id_may_hold_dots(execution: str) -> None:
    assert parse_interaction_id(f"{execution}.7.u") == InteractionRef(execution, 7, None, f"{execution}.7")
