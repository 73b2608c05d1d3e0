"""Transitions as data (BEHAVIOUR 2): `(status, fact) -> status`. The diagrams in docs/ are drawn from these tables.

A pair that a table does not name is illegal: it raises and leaves the record as it was. `None` is the record that does not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from schemas.facts import Fact

Record = TypeVar("Record")

Transitions = Mapping[tuple[str | None, type[Fact]], str]


class IllegalTransition(AssertionError):
    """A broken invariant: the core decided a fact that its record cannot take."""


def by_status(
    transitions: Transitions, evolve: Mapping[type[Fact], Callable[[Any, Any], Record]]
) -> dict[tuple[str | None, type[Fact]], Callable[[Any, Any], Record]]:
    """What makes the next record, for each pair of the table: one look-up a fact tells whether it is possible, and what follows."""
    return {pair: evolve[pair[1]] for pair in transitions}


def next_status(transitions: Transitions, status: str | None, fact: Fact) -> str:
    """The status after `fact`.

    Raises:
        IllegalTransition: the table does not name the pair.
    """
    after = transitions.get((status, type(fact)))
    if after is None:
        raise illegal(status, fact)
    return after


def illegal(status: str | None, fact: Fact) -> IllegalTransition:
    """The error of a pair that a table does not name."""
    return IllegalTransition(f"{type(fact).__name__} is not possible in status {status}: {fact.execution_id}")


def mermaid(name: str, transitions: Transitions, *, named: Mapping[type[Fact], Sequence[str]] | None = None) -> str:
    """A Mermaid state diagram of one table.

    Args:
        name: A comment in the diagram.
        transitions: The table.
        named: Facts that name the status themselves, each with the statuses besides the table's own that it may name.
    """
    lines = ["stateDiagram-v2", f"    %% {name}"]
    edges: dict[tuple[str, str], list[str]] = {}
    for (before, fact), after in transitions.items():
        for status in (after, *(named or {}).get(fact, ())):
            edges.setdefault((str(before or "[*]"), str(status)), []).append(fact.__name__)
    lines += [f"    {before} --> {after}: {', '.join(facts)}" for (before, after), facts in edges.items()]
    left = {before for before, after in edges if before != after}
    lines += [f"    {after} --> [*]" for after in dict.fromkeys(after for _, after in edges) if after not in left]
    return "\n".join(lines)
