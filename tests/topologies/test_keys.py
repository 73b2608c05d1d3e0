"""Idempotency keys of a stream: a corrected file asks under the keys of the first one, only what is new has a new key (FAULTS K2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from schemas import limits
from tests.topologies.outside import price

if TYPE_CHECKING:
    from streams.testing.driver import TopologyTestDriver

ROWS = 5_000
BY_ROW = "steps.ask.idempotencyKeyFields=[sku]"
BY_FILE_AND_ROW = "steps.ask.idempotencyKeyFields=[basket, sku]"


def paid(driver: TopologyTestDriver, file: Path) -> list[str]:
    """Submit a file, answer all that is asked; the keys of its requests, in order."""
    execution = driver.submit(file=file)
    keys: list[str] = []
    while True:
        driver.run()
        requests = driver.new_requests()
        if not requests:
            break
        keys += [request.idempotency_key for request in requests]
        for request in requests:
            driver.complete(request, price(request))
    assert driver.status(execution) == "SUCCEEDED", driver.execution(execution)
    return keys


def test_three_bad_rows_of_five_thousand_are_left_out_corrected_and_asked_for_alone(
    shop: Any, script: Any, tmp_path: Path
) -> None:
    driver = shop(
        "files",
        sets=(
            BY_FILE_AND_ROW,
            "steps.receipt.onError={deadLetter: true}",
            f"output.location={tmp_path / 'out'}",
        ),
    )
    rows = [f"row-{number}" for number in range(ROWS)]
    bad = {10: "bad-1", 2_500: "bad-2", ROWS - 1: "bad-3"}
    for number, sku in bad.items():
        rows[number] = sku
        script.failures["receipt", sku] = [KeyError(sku)]
    file = tmp_path / "payments.txt"
    file.write_text("\n".join(rows))
    first = paid(driver, file)
    (output,) = (tmp_path / "out").glob("*.out")
    assert len(output.read_text().splitlines()) == 1 + ROWS - len(bad)
    output.unlink()  # the second one has the same name
    letters = driver.dead_letters()
    assert {letter.item_index for letter in letters} == set(bad)
    assert [letter.kind for letter in letters] == ["item"] * len(bad)
    asked = [json.loads(letter.value or b"")["request"]["sku"] for letter in letters]
    assert sorted(asked) == sorted(bad.values())
    for number in bad:
        rows[number] = f"row-{number}"
    file.write_text("\n".join(rows))
    second = paid(driver, file)
    assert len(first) == len(set(first)) == len(second) == len(set(second)) == ROWS
    assert len(set(first) & set(second)) == ROWS - len(bad)


def test_a_row_that_is_inserted_and_one_that_is_removed_change_no_other_key(shop: Any, tmp_path: Path) -> None:
    driver = shop("files", sets=(BY_ROW, f"output.location={tmp_path / 'out'}"))
    rows = [f"row-{number}" for number in range(300)]
    for number in range(5):
        rows[200 + number] = rows[20 + number]  # five real payments that are equal to an earlier one
    first_file, second_file = tmp_path / "first.txt", tmp_path / "second.txt"
    first_file.write_text("\n".join(rows))
    first = paid(driver, first_file)
    assert len(set(first)) == len(rows)
    assert sorted(key for key in first if key.endswith(":n=2")) == sorted(f"ask:sku=row-{20 + n}:n=2" for n in range(5))
    removed = rows.index("row-100")
    second_file.write_text("\n".join(["row-new", *rows[:removed], *rows[removed + 1 :]]))
    second = paid(driver, second_file)
    assert set(second) - set(first) == {"ask:sku=row-new"}
    assert set(first) - set(second) == {"ask:sku=row-100"}


def test_a_source_that_is_read_again_counts_again(make: Any, tmp_path: Path) -> None:
    """Whoever takes over reads from item 0 on, so that the second of two equal rows is the second again."""
    driver = make("files", sets=(BY_ROW, "steps.ask.await.live.window=2", f"output.location={tmp_path / 'out'}"))
    file = tmp_path / "payments.txt"
    file.write_text("a a b a c a")
    execution = driver.submit(file=file)
    keys: list[str] = []
    for _ in range(4):
        driver.run()
        requests = driver.new_requests()
        keys += [request.idempotency_key for request in requests]
        driver.crash()
        for request in requests:
            driver.complete(request, price(request))
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert keys == [f"ask:sku={end}" for end in ("a", "a:n=2", "b", "a:n=3", "c", "a:n=4")]


@pytest.mark.parametrize(
    ("sets", "same", "other"),
    [
        pytest.param((BY_ROW,), "a b a", "a a b", id="by key: another order of equal rows"),
        pytest.param((BY_ROW,), "a b a", "a c a", id="by key: another row"),
        pytest.param((), "a b a", "a c a", id="without fields: another request"),
    ],
)
def test_a_recomputed_key_that_differs_is_a_source_that_changed(
    make: Any, script: Any, sets: tuple[str, ...], same: str, other: str
) -> None:
    driver = make("items", sets=("steps.ask.await.live.window=2", *sets))
    execution = driver.submit({"id": "b", "lines": same.split()})
    driver.run()
    requests = driver.new_requests()
    assert len(requests) == 2
    driver.crash()
    now = other.split()
    changed = next(
        index for index, (before, after) in enumerate(zip(same.split(), now, strict=True)) if before != after
    )
    script.lines[same.split()[changed]] = now[changed]
    driver.complete(requests[0], price(requests[0]))
    driver.run()
    row = driver.execution(execution)
    assert row is not None
    assert (row.status, row.error_code) == ("FAILED", "SOURCE_CHANGED")


def test_a_worker_that_may_keep_no_more_keys_counts_on_all_the_same(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COUNTED_KEYS_MAX", 3)
    driver = make("files", sets=(BY_ROW, f"output.location={tmp_path / 'out'}"))
    file = tmp_path / "payments.txt"
    file.write_text("a b a c d a e b")
    ends = ("a", "b", "a:n=2", "c", "d", "a:n=3", "e", "b:n=2")
    assert paid(driver, file) == [f"ask:sku={end}" for end in ends]
