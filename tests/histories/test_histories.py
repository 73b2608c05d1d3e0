"""Recorded fact logs still give the rows that they gave when they were recorded (DESIGN 10)."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from schemas import codec
from schemas.facts import FACTS, Fact
from state.folding import decode_row, encode_row, fold
from tests.decisions.given import DictRows
from tests.histories.record import PATHS, history, plain, walk

FILES = sorted(Path(__file__).parent.glob("*.json"))


def facts_in(file: Path) -> list[tuple[str, Fact]]:
    recorded = json.loads(file.read_text(encoding="utf-8"))["facts"]
    read = []
    for entry in recorded:
        ((kind, avro),) = entry.items()
        fact = codec.decode(base64.b64decode(avro))
        assert isinstance(fact, Fact)
        read.append((kind, fact))
    return read


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recorded_log_replays_to_its_rows(file: Path) -> None:
    rows = DictRows()
    for kind, fact in facts_in(file):
        assert type(fact).__name__ == kind
        fold(rows, fact)
    expected = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert set(expected) == {key.decode() for key in rows}
    for key, record in rows.items():
        now = plain(decode_row(key, encode_row(record)))
        then = expected[key.decode()]
        assert {name: now[name] for name in then} == then  # fields added since have their defaults


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_log_that_is_cut_anywhere_folds_up_to_there(file: Path) -> None:
    """A restart after any fact: rows of a prefix, then the rest, are the rows of the whole."""
    log = [fact for _, fact in facts_in(file)]
    whole = DictRows()
    for fact in log:
        fold(whole, fact)
    for cut in range(len(log)):
        rows = DictRows()
        for fact in log[:cut]:
            fold(rows, fact)
        restored = DictRows({key: decode_row(key, encode_row(record)) for key, record in rows.items()})
        for fact in log[cut:]:
            fold(restored, fact)
        assert restored == whole


def test_every_history_was_recorded() -> None:
    assert {file.stem for file in FILES} >= set(PATHS), "run: PYTHONPATH=. python tests/histories/record.py"


def test_the_histories_show_every_fact_that_this_release_records() -> None:
    shown = {kind for file in FILES for kind, _ in facts_in(file)}
    later = {"RunRedriven"}  # nothing decides it yet
    assert {kind.__name__ for kind in FACTS} - shown == later


@pytest.mark.parametrize("name", PATHS)
def test_the_paths_still_end(name: str) -> None:
    world = walk(*PATHS[name])
    assert not world.is_open
    assert history(world.log, world.rows)["rows"]
