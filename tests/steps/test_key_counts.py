"""Counting equal keys of a stream: in memory up to a bound that all streams share, in a temporary database beyond it."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from schemas import limits
from streams.author import key_counts
from streams.author.key_counts import KeyBudget, KeyCounts


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_counts, "BLOCK", 10)
    monkeypatch.setattr(limits, "COUNTED_KEYS_MAX", 100)


def room_of(budget: KeyBudget) -> int:
    taken = 0
    while (block := budget.take()) > 0:
        taken += block
    budget.give_back(taken)
    return taken


@pytest.mark.parametrize("keys", [20, 90, 5_000])
def test_the_number_of_a_key_is_how_often_it_came(keys: int) -> None:
    """The same below the bound, at it and far beyond it."""
    draw, counts, seen = Random(keys), KeyCounts(KeyBudget()), Counter[str]()
    for _ in range(keys * 2):
        key = f"key-{draw.randrange(keys)}"
        seen[key] += 1
        assert counts.number(key) == seen[key]
    assert counts.is_spilled == (keys > 60)
    counts.close()


def test_all_streams_share_one_bound_and_none_waits_for_another() -> None:
    budget = KeyBudget()
    first, second = KeyCounts(budget), KeyCounts(budget)
    for number in range(100):
        first.number(f"key-{number}")
    assert not first.is_spilled
    assert [second.number(key) for key in ("a", "b", "a")] == [1, 1, 2]
    assert second.is_spilled
    first.close()
    second.close()
    assert room_of(budget) == limits.COUNTED_KEYS_MAX


def test_a_stream_that_spills_gives_its_room_to_others() -> None:
    budget = KeyBudget()
    large = KeyCounts(budget)
    for number in range(101):
        large.number(f"key-{number}")
    assert large.is_spilled
    assert room_of(budget) == limits.COUNTED_KEYS_MAX
    assert [large.number(f"key-{number}") for number in (0, 100, 101)] == [2, 2, 1]
    large.close()


def test_nothing_is_kept_of_a_stream_that_is_over() -> None:
    budget = KeyBudget()
    counts = KeyCounts(budget)
    counts.number("a")
    counts.close()
    assert room_of(budget) == limits.COUNTED_KEYS_MAX
    counts.close()
    assert room_of(budget) == limits.COUNTED_KEYS_MAX
