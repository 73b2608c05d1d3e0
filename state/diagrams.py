"""The state diagrams of docs/states.md, drawn from the transition tables: `python -m state.diagrams` writes the file."""

from __future__ import annotations

from pathlib import Path

from schemas import facts
from state import execution, interaction, item, unit
from state.item import ItemStatus
from state.transition import mermaid
from state.unit import UnitStatus

FILE = Path(__file__).parents[1] / "docs" / "states.md"

_HEAD = """# States

Drawn from the `TRANSITIONS` tables in `state/` by `python -m state.diagrams`; a test holds this page and the tables together.
Edges are facts. A pair of status and fact that is not drawn is illegal: it raises and leaves the record as it was."""

_DIAGRAMS = (
    (
        "Execution",
        "One run of a pipeline. `WAITING_EXTERNAL` is parked at `await_unit_id`; a live window runs inside `RUNNING`.",
        mermaid("state/execution.py", execution.TRANSITIONS),
    ),
    (
        "Unit",
        "The durable state of one await step. Any ending closes it, and with it every interaction, timer and slot.",
        mermaid(
            "state/unit.py",
            unit.TRANSITIONS,
            named={facts.BoundaryUnitClosed: (UnitStatus.FAILED, UnitStatus.TIMED_OUT, UnitStatus.CANCELLED)},
        ),
    ),
    (
        "Interaction",
        "One outside request and its answer; open only while its unit is open.",
        mermaid("state/interaction.py", interaction.TRANSITIONS),
    ),
    (
        "Item",
        "How far the suffix of one item has come.",
        mermaid("state/item.py", item.TRANSITIONS, named={facts.ContinuationAttemptFailed: (ItemStatus.FAILED,)}),
    ),
)


def document() -> str:
    """The whole page."""
    sections = [f"## {title}\n\n{text}\n\n```mermaid\n{diagram}\n```" for title, text, diagram in _DIAGRAMS]
    return "\n\n".join([_HEAD, *sections]) + "\n"


def main() -> None:
    """Write the page."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
