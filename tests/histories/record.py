"""Write the recorded fact logs: `PYTHONPATH=. python tests/histories/record.py [NAME]...`; an existing file is never overwritten.

A log that was recorded once must replay for ever (DESIGN 10): after a change of `evolve` or of a schema, add a log, keep the old ones.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from schemas import codec
from schemas.facts import Fact
from state.folding import Row
from tests.decisions.given import NO, TO_OBJECT, TO_TOPIC, DictRows, scalar, stream, stream_to_total
from tests.decisions.small_model import Scenario, World
from topologies.pipeline.steps import DeadLetterAndSkip, Skip, Value

FOLDER = Path(__file__).parent

PATHS: dict[str, tuple[Scenario, list[str]]] = {
    "scalar": (
        Scenario(scalar(TO_OBJECT), None, (("conflict", 1), ("publish", 1), ("segment", 1))),
        [
            "segment failed",
            "retry due",
            "segment done",
            "answer None",
            "conflict None",
            "segment done",
            "publication failed",
            "retry due",
            "published",
        ],
    ),
    "scalar-expired": (Scenario(scalar(), deadlines=True), ["segment done", "deadline None"]),
    "moved-then-forgotten": (
        Scenario(scalar(TO_OBJECT), None, (("moved", 1), ("forgotten", 1))),
        ["segment done", "answer None", "segment done", "published", "input moved", "forgotten"],
    ),
    "scalar-cancelled": (Scenario(scalar(), None, (("cancel", 1),)), ["segment done", "cancel"]),
    "live": (
        Scenario(stream(TO_OBJECT), 2, (("early", 1), ("suffix", 1), ("takeover", 1))),
        [
            "early 1",
            "pull",
            "pull the last",
            "suffix 1 failed",
            "takeover",
            "answer 0",
            "suffix 0 done",
            "item 1 due",
            "suffix 1 done",
            "published",
        ],
    ),
    "live-then-parked": (
        Scenario(stream(TO_TOPIC, on_timeout=Value(json=NO)), 2, (("duplicate", 1),), deadlines=True, idles=True),
        [
            "pull",
            "answer 0",
            "suffix 0 done",
            "pull the last",
            "idle",
            "sweep",
            "sweep",
            "deadline 1",
            "continued (1, 1)",
        ],
    ),
    "suspending": (
        Scenario(stream_to_total(live=False, on_timeout=Skip()), 3, (("suffix", 1), ("lost", 1)), deadlines=True),
        [
            "pull",
            "pull",
            "answer 1",
            "pull the last",
            "sweep",
            "sweep",
            "sweep",
            "continuation (1, 1) failed",
            "item 1 due",
            "continuation (1, 2) lost",
            "item 1 due",
            "deadline 0",
            "answer 2",
            "continued (2, 1)",
            "continued (1, 2)",
            "segment done",
            "collected",
        ],
    ),
    "item-gave-up": (
        Scenario(stream(live=False, attempts=1), 2, (("suffix", 1),)),
        [
            "pull",
            "pull the last",
            "answer 0",
            "sweep",
            "sweep",
            "continuation (0, 1) failed",
            "answer 1",
            "continued (1, 1)",
        ],
    ),
    "items-left-out": (
        Scenario(
            stream(TO_TOPIC, attempts=1, on_error=DeadLetterAndSkip(), on_timeout=Skip()),
            3,
            (("suffix", 1),),
            deadlines=True,
        ),
        [
            "pull",
            "pull",
            "answer 1",
            "suffix 1 failed",
            "pull the last",
            "answer 2",
            "deadline 0",
            "answer 0",
            "suffix 2 done",
        ],
    ),
    "scalar-answered-late": (
        Scenario(scalar(), None, (("duplicate", 1),), deadlines=True),
        ["segment done", "deadline None", "answer None", "duplicate None"],
    ),
}
"""A log's name -> the events that make it."""


def walk(scenario: Scenario, path: list[str]) -> World:
    """The world after these events."""
    world = World(scenario, dict(scenario.budget))
    for name in ["submit", *path]:
        happen = dict(world.events()).get(name)
        if happen is None:
            raise ValueError(f"{name!r} cannot happen now; these can: {[event for event, _ in world.events()]}")
        happen(world)
        world.settle()
    return world


def plain(record: Row) -> dict[str, Any]:
    """A record by field, as JSON holds it."""
    return {name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(record).items()}


def history(log: tuple[Fact, ...], rows: DictRows) -> dict[str, Any]:
    """What a file holds: facts as the topic carries them, and the rows that follow."""
    return {
        "facts": [{type(fact).__name__: base64.b64encode(codec.encode(fact)).decode()} for fact in log],
        "rows": {key.decode(): plain(record) for key, record in sorted(rows.items())},
    }


def main(names: list[str]) -> None:
    """Write the logs that are not there yet."""
    for name in names or PATHS:
        file = FOLDER / f"{name}.json"
        if not file.exists():
            world = walk(*PATHS[name])
            file.write_text(json.dumps(history(world.log, world.rows), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
