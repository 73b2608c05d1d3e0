"""Payloads near the limit come by the thousand too: no job, inbox or transaction holds more of them than it must (DESIGN 6 'Bounds')."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from schemas import limits
from streams.author.calls import Items, StreamRequest, SuffixResult
from streams.author.local import LocalAuthor
from streams.engine.loop import TransactionalLoop
from streams.engine.task import Outputs
from topologies.pipeline.items import SourceItem
from topologies.pipeline.shapes import Shape, Unshaped

JOB, INBOX, TRANSACTION = 20_000, 60_000, 50_000
ITEM = 3_000
COUNT = 200


class Weighed:
    """A stream of items that notes how much was pulled at once."""

    def __init__(self, items: Items, note: Callable[[str, int], None]) -> None:
        self._items = items
        self._note = note

    def pull(self, count: int) -> tuple[list[SourceItem], bool]:
        some, has_ended = self._items.pull(count)
        self._note("pull", sum(len(item.request) for item in some))
        return some, has_ended

    def close(self) -> None:
        self._items.close()


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Bytes of each job and transaction, by kind, with small limits."""
    found: dict[str, list[int]] = {}

    def note(kind: str, size: int) -> None:
        found.setdefault(kind, []).append(size)

    class Weighing(LocalAuthor):
        def project(self, answers: Sequence[Unshaped], shapes: list[Shape], starts: Callable[[], None]) -> None:
            note("project", sum(len(answer.payload) + len(answer.request or b"") for answer in answers))
            super().project(answers, shapes, starts)

        def run_suffixes(
            self,
            await_index: int,
            completions: Sequence[bytes],
            outcomes: list[SuffixResult],
            starts: Callable[[], None],
        ) -> None:
            note("run", sum(map(len, completions)))
            super().run_suffixes(await_index, completions, outcomes, starts)

        def open_items(self, asked: StreamRequest) -> Items:
            return Weighed(super().open_items(asked), note)

    produce = TransactionalLoop._produce

    def weighed(loop: TransactionalLoop, producer: Any, outputs: Outputs, changes: Any) -> Any:
        note("transaction", outputs.size)
        return produce(loop, producer, outputs, changes)

    monkeypatch.setattr("streams.worker.assembly.LocalAuthor", Weighing)
    monkeypatch.setattr(TransactionalLoop, "_produce", weighed)
    monkeypatch.setattr(limits, "READ_ROWS", 2)
    monkeypatch.setattr(limits, "JOB_BYTES_MAX", JOB)
    monkeypatch.setattr(limits, "INBOX_BYTES_MAX", INBOX)
    monkeypatch.setattr(limits, "TRANSACTION_BYTES_MAX", TRANSACTION)
    return found


def test_large_payloads_come_a_few_at_a_time(shop: Any, weights: dict[str, list[int]]) -> None:
    """Live and suspending, with a projector; every item gets through."""
    lines = [f"{number}-".ljust(ITEM, "x") for number in range(COUNT)]
    driver = shop("projected", answer=lambda _request: {"price": "1.50"})
    execution = driver.submit({"id": "b1", "lines": lines})
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert [receipt["sku"] for receipt in driver.result(execution)] == lines
    one_row = limits.READ_ROWS * 2 * (ITEM + 200)
    assert max(weights["pull"]) <= JOB + one_row
    assert max(weights["project"]) <= JOB + one_row
    assert max(weights["run"]) <= JOB + one_row
    assert len(weights["pull"]) >= COUNT * ITEM / (JOB + one_row)
    # An event is decided whole: the last one of a transaction may bring a job's items, each as request, fact and continuation.
    *others, _basket, _result = sorted(weights["transaction"])  # the two that carry all lines as one payload
    assert max(others) <= TRANSACTION + 4 * (JOB + one_row)


@pytest.mark.parametrize("size", [ITEM, 10], ids=["large", "small"])
def test_reading_waits_while_a_lot_of_bytes_waits(shop: Any, weights: dict[str, list[int]], size: int) -> None:
    """Few large records fill an inbox as many small ones would not."""
    driver = shop("projected")
    execution = driver.submit({"id": "b1", "lines": ["apple", "pear"]})
    driver.run()
    driver.hold()
    for number in range(40):
        text = json.dumps(
            {"interactionId": f"{execution}.1.0", "responsePayload": {"price": "1", "x": f"{number}" * size}}
        )
        driver.send_raw("projected.answered", text.encode())
    for _ in range(10):
        driver.step()
    full = [
        bool(task.full_inputs()) for task in driver.worker.loops["core"].tasks.values() if task.intake.waiting_bytes
    ]
    assert full[:1] == [size == ITEM]
    driver.release()
    driver.run()
    assert not any(
        task.full_inputs() or task.intake.waiting_bytes for task in driver.worker.loops["core"].tasks.values()
    )
    assert not any(task.waiting_bytes for task in driver.worker.loops["ingress"].tasks.values())
    del weights
