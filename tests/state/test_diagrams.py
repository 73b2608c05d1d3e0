"""docs/states.md is what the transition tables say."""

from __future__ import annotations

import re

import pytest

from schemas.facts import RunFailed
from state import diagrams, execution, interaction, item, unit
from state.transition import mermaid


def test_the_page_is_current() -> None:
    assert diagrams.FILE.read_text(encoding="utf-8") == diagrams.document(), "run: python -m state.diagrams"


def test_the_page_is_written(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "docs" / "states.md"  # type: ignore[operator]
    monkeypatch.setattr(diagrams, "FILE", target)
    diagrams.main()
    assert target.read_text(encoding="utf-8") == diagrams.document()


@pytest.mark.parametrize("module", [execution, unit, interaction, item], ids=lambda module: module.__name__)
def test_every_row_of_a_table_is_drawn(module: object) -> None:
    page = diagrams.document()
    for (before, fact), after in module.TRANSITIONS.items():  # type: ignore[attr-defined]
        edge = rf"^    {re.escape(before or '[*]')} --> {after}: .*\b{fact.__name__}\b"
        assert re.search(edge, page, re.MULTILINE), (before, fact, after)


@pytest.mark.parametrize("outcome", ["COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED"])
def test_a_fact_that_names_the_status_is_drawn_with_each(outcome: str) -> None:
    assert f"    WAITING_EXTERNAL --> {outcome}: BoundaryUnitClosed\n    " in diagrams.document()


def test_a_small_diagram() -> None:
    drawn = mermaid("one", {(None, RunFailed): "BROKEN", ("BROKEN", RunFailed): "BROKEN"})
    assert drawn.splitlines() == [
        "stateDiagram-v2",
        "    %% one",
        "    [*] --> BROKEN: RunFailed",
        "    BROKEN --> BROKEN: RunFailed",
        "    BROKEN --> [*]",
    ]
