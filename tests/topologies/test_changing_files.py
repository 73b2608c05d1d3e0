"""A file that changes under its reader: nothing is asked that was not in what was submitted (DECISIONS 16)."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.objects.looks import Look, read_content
from schemas import limits
from streams.roles.core import proof
from streams.testing.driver import TopologyTestDriver
from tests.topologies.conftest import MakeDriver

ROWS = 2_000
PULL = 300
ANN = "Ann" * 60
"""Long enough that a few dozen rows fill the buffer of whoever reads them."""
HEADER = "ID,Recipient,Amount,Currency"


def row(number: int) -> str:
    return f"{number},{ANN},{10_000 + number}.00,USD\n"


def rows(count: int) -> str:
    return f"{HEADER}\n" + "".join(map(row, range(1, count + 1)))


# --- edits ---------------------------------------------------------------------------------------------------------------------------


def append(file: Path) -> None:
    with file.open("a") as end:
        end.write(row(ROWS + 1))


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def overwrite(file: Path) -> None:
    """As long as before, with the times of before."""
    before = file.stat()
    with file.open("r+") as inside:
        inside.write(file.read_text().replace(".00,", ".99,"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(file: Path) -> None:
    """By another one that is as long, and has the times of the first."""
    before, other = file.stat(), file.with_name("other")
    other.write_text(file.read_text().replace(".00,", ".99,"))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)


EDITS = (append, truncate, overwrite, replace)


# --- moments -------------------------------------------------------------------------------------------------------------------------


class Moments:
    """Counts what happens while a file is read, and edits it at one of these moments."""

    def __init__(self, edit: Callable[[], None] = lambda: None, at: int = -1) -> None:
        self.count = 0
        self.looks = 0
        self._edit = edit
        self._at = at

    def pass_one(self) -> None:
        if self.count == self._at:
            self._edit()
        self.count += 1

    def watch(self, driver: TopologyTestDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each row, each look and each reading of the whole are moments."""
        step: Any = driver.pipeline.steps[0]
        read = step.function

        def reading(file: Any) -> Iterator[Any]:
            for item in read(file):
                self.pass_one()
                yield item
            self.pass_one()

        def content(path: Path, before_each: Callable[[], None] = lambda: None) -> tuple[str, int]:
            self.pass_one()
            found = read_content(path, before_each)
            self.pass_one()
            return found

        class Looking(Look):
            __slots__ = ()

            @classmethod
            def of(cls, path: str | Path) -> Look:  # type: ignore[override]
                self.pass_one()
                self.looks += 1
                return Look.of(path)

        object.__setattr__(step, "function", reading)
        monkeypatch.setattr(proof, "read_content", content)
        monkeypatch.setattr(proof, "Look", Looking)
        monkeypatch.setattr(limits, "PULL_ITEMS_MAX", PULL)


def asked(driver: TopologyTestDriver) -> list[int]:
    """The rows that were asked for, each as it was submitted."""
    requests = [json.loads(bytes(request.request_payload)) for request in driver.requests()]
    numbers = sorted(int(request["csvId"]) for request in requests)
    assert all(request["amount"] == f"{10_000 + int(request['csvId'])}.00" for request in requests)
    assert all(request["recipient"] == ANN for request in requests)
    return numbers


def play(driver: TopologyTestDriver, file: Path) -> str:
    execution = driver.submit(file=file)
    driver.run()
    while driver.status(execution) == "WAIT_RETRY":
        driver.advance(60_000)
    return execution


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "payments.csv"
    path.write_text(rows(ROWS))
    return path


@pytest.mark.parametrize("seed", range(50))
def test_a_file_that_is_changed_at_any_moment_is_read_as_submitted_or_not_at_all(
    make: MakeDriver, file: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(seed)
    edit, part = EDITS[seed % len(EDITS)], draw.random()
    # Half of the moments lie near the beginning or the end, where the checks are.
    at = int(part * (ROWS + 20)) if seed % 8 < 4 else draw.choice((draw.randrange(8), ROWS + draw.randrange(24)))
    driver = make("csv-payments")
    moments = Moments(lambda: edit(file), at)
    moments.watch(driver, monkeypatch)
    execution = play(driver, file)
    submitted, numbers = list(range(1, ROWS + 1)), asked(driver)
    assert numbers == submitted[: len(numbers)], "each row once, and none that was not submitted"
    row_of = driver.execution(execution)
    assert row_of is not None
    if row_of.status == "FAILED":
        assert row_of.error_code == "SOURCE_CHANGED"
    else:
        assert numbers == submitted


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_in_the_middle_is_noticed(
    make: MakeDriver, file: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[Path], None]
) -> None:
    driver = make("csv-payments")
    Moments(lambda: edit(file), ROWS // 2).watch(driver, monkeypatch)
    execution = play(driver, file)
    found = driver.execution(execution)
    assert found is not None
    assert (found.status, found.error_code) == ("FAILED", "SOURCE_CHANGED")
    assert len(asked(driver)) < ROWS


def test_a_file_that_is_only_touched_is_read_once_more(
    make: MakeDriver, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make("csv-payments")
    Moments(lambda: os.utime(file), ROWS // 2).watch(driver, monkeypatch)
    execution = play(driver, file)
    assert "SegmentAttemptFailed" in driver.fact_names(execution)
    assert asked(driver) == list(range(1, ROWS + 1))


def test_an_unchanged_file_is_read_and_asked_whole(
    make: MakeDriver, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, moments = make("csv-payments"), Moments()
    moments.watch(driver, monkeypatch)
    play(driver, file)
    assert asked(driver) == list(range(1, ROWS + 1))
    pulls = -(-ROWS // PULL)
    assert moments.looks == pulls + 1, "one at the beginning, and one for each pull"


SUMS = """
from pathlib import Path
from pydantic import BaseModel

during = []

class File(BaseModel):
    path: str

class Sum(BaseModel):
    rows: int

def add_up(file):
    for act in during:
        act()
    return Sum(rows=len(Path(file.path).read_text().splitlines()))
"""
SUMS_YAML = """
app: sums
input: {from: object, provider: filesystem, location: in}
steps:
  - {name: Add Up, input: "sums:File", output: "sums:Sum", run: "sums:add_up", retry: {attempts: 3, base: PT1S}}
  - name: Ask
    kind: await
    input: sums:Sum
    output: sums:Sum
    timeout: PT1H
    await:
      correlation: {strategy: interactionId}
      transport: {type: kafka, request: {topic: "{app}.asked"}, response: {topic: "{app}.answered"}}
"""


@pytest.mark.parametrize("edit", [append, truncate, replace, os.utime], ids=lambda edit: edit.__name__)
def test_what_a_step_made_of_a_file_that_changed_under_it_is_thrown_away(
    file: Path, tmp_path: Path, edit: Callable[[Path], None]
) -> None:
    """One that runs to its end before an await, so that no item passes a look on its way."""
    (tmp_path / "sums.py").write_text(SUMS)
    (tmp_path / "sums.yaml").write_text(SUMS_YAML)
    driver = TopologyTestDriver(tmp_path / "sums.yaml")
    during = sys.modules["sums"].during

    def edit_once() -> None:
        during.clear()
        edit(file)

    during.append(edit_once)
    execution = play(driver, file)
    found = driver.execution(execution)
    assert found is not None
    if edit is os.utime:
        (request,) = driver.requests()
        assert json.loads(bytes(request.request_payload)) == {"rows": ROWS + 1}
        assert driver.fact_names(execution).count("SegmentAttemptFailed") == 1
    else:
        assert (found.status, found.error_code) == ("FAILED", "SOURCE_CHANGED")
        assert driver.requests() == []
    driver.close()
