"""The open batch over the committed rows: what it is told about rows that it has not read."""

from __future__ import annotations

import re

import pytest

from state.folding import encode_row
from state.interaction import InteractionRecord, InteractionStatus
from state.keys import interaction_key
from state.tables.memory import MemoryStore
from state.tables.overlay import CheckedOverlay, HotRows, Overlay, WrongAssumption

STORED, NEW = interaction_key("e.1", 0), interaction_key("e.1", 1)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.apply({STORED: encode_row(InteractionRecord("e.1", 0, InteractionStatus.PENDING))}, {})
    return store


@pytest.mark.parametrize("kind", [Overlay, CheckedOverlay])
def test_a_row_that_is_said_to_be_new_is_not_read(store: MemoryStore, kind: type[Overlay]) -> None:
    overlay = kind(store, HotRows())
    overlay.assume_absent(key for key in [NEW])
    store.close()  # a read would fail
    assert overlay.get(NEW) is None


def test_a_checked_overlay_names_the_row_that_is_not_new(store: MemoryStore) -> None:
    overlay = CheckedOverlay(store, HotRows())
    with pytest.raises(WrongAssumption, match=re.escape(f"{STORED!r} was taken to be a new row, and is there")):
        overlay.assume_absent([NEW, STORED])


def test_in_production_the_word_of_the_core_is_taken(store: MemoryStore) -> None:
    overlay = Overlay(store, HotRows())
    overlay.assume_absent([STORED])
    assert overlay.get(STORED) is None
