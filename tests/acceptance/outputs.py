"""Outputs: what is wrong with them is told before anything is asked; what fails is left out and corrected without asking for the rest again."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from connectors.objects.listing import identify
from schemas.envelopes import ExecutionOutcome
from schemas.limits import AGGREGATE_ITEMS_MAX
from streams.doors.submissions import command_for_object
from tests.acceptance.ground import App, Ground
from tests.acceptance.outside import Asked, Outside
from tests.acceptance.registry import Checks, line

PROJECT = Path(__file__).parent / "projects" / "ledger"
LEDGER, TOTAL, NESTED = (PROJECT / f"{name}.yaml" for name in ("pipeline", "total", "nested"))
BROKEN_AT = (7, 1_234, 4_321)
"""Lines whose suffix fails."""
TWINS = 5
SUSPENDING = ("steps.ask.await.live=false",)
FOUND_FAULTY = 1
"""What `kawait check` ends with."""


class Ledger:
    """The ledger application, with an outside party that agrees to everything."""

    def __init__(self, ground: Ground, name: str, *, path: Path = LEDGER, overrides: Sequence[str] = ()) -> None:
        self.app: App = ground.app(name, path=path, overrides=overrides)
        self.inputs = self.app.folder / "books"
        self.inputs.mkdir()
        self.outside = Outside(self.app)
        self.app.worker()

    def submit(self, name: str, lines: Sequence[str]) -> str:
        """Write a book and submit it; returns the execution id."""
        path = self.inputs / name
        path.write_text("".join(f"{text}\n" for text in lines))
        return self.app.submit(path)

    def wait(self, execution: str) -> ExecutionOutcome:
        """Answer until it has ended."""
        return self.app.wait([execution], turn=self.outside.turn, timeout_s=90)[execution]

    def asked(self, execution: str) -> list[Asked]:
        """Its requests, in the order of the file."""
        own = [request for request in self.outside.take_all() if request.execution_id == execution]
        return sorted(own, key=lambda request: request.item_index or 0)

    def keys(self, execution: str) -> list[str]:
        """Idempotency keys, in the order of the file."""
        return [request.idempotency_key for request in self.asked(execution)]


def book(count: int) -> list[str]:
    """Lines that all differ."""
    return [f"acc-{number:05},{number}.25" for number in range(count)]


# --- knowable ------------------------------------------------------------------------------------------------------------------------


@line("outputs", "Every output problem that is knowable is refused before the first request")
def knowable(ground: Ground, checks: Checks) -> None:
    """Some when the pipeline is read, the others when an execution begins."""
    _at_load(ground, checks, "csv of a list", [str(NESTED)], "tags")
    wrong = [str(LEDGER), "--set", "output.key={nonsense}.out"]
    _at_load(ground, checks, "a placeholder that means nothing", wrong, "nonsense")

    ledger = Ledger(ground, "knowable")
    _refused(ledger, checks, "a name that is too long", f"{'n' * 230}.txt", book(10), "255")
    name = "occupied.txt"
    _occupy(ledger, name, book(10))
    _refused(ledger, checks, "other content is there", name, book(10), "occupied")
    ledger.app.close()

    wall = ground.folder / "no-folder"
    wall.write_text("a file, where a folder would have to be made")
    ledger = Ledger(ground, "unwritable", overrides=(f"output.location={wall / 'out'}",))
    _refused(ledger, checks, "a place that cannot be written", "unwritable.txt", book(10), wall.name)
    ledger.app.close()

    ledger = Ledger(ground, "aggregate", path=TOTAL)
    count = AGGREGATE_ITEMS_MAX + 1
    _refused(ledger, checks, f"{count:,} items for an aggregate", "many.txt", book(count), "AGGREGATE_ITEMS_MAX")


def _at_load(ground: Ground, checks: Checks, what: str, arguments: list[str], word: str) -> None:
    said = ground.kawait("check", *arguments, check=False)
    text = (said.stdout + said.stderr).strip()
    checks.that(
        f"{what}: refused when the pipeline is read",
        said.returncode == FOUND_FAULTY and word in text and "Traceback" not in text,
        f"exit code {said.returncode}: {text.splitlines()[-1][-200:] if text else 'nothing'}",
    )


def _occupy(ledger: Ledger, name: str, lines: Sequence[str]) -> None:
    """Put other content where the output of that book goes: known once its execution's id is."""
    path = ledger.inputs / name
    path.write_text("".join(f"{text}\n" for text in lines))
    execution = command_for_object(ledger.app.pipeline, identify(path)).execution_id
    (ledger.app.output / f"{path.stem}-{execution}.out").write_text("somebody else's\n")


def _refused(ledger: Ledger, checks: Checks, what: str, name: str, lines: Sequence[str], word: str) -> None:
    execution = ledger.submit(name, lines)
    told = ledger.wait(execution)
    count = len(ledger.asked(execution))
    checks.that(
        f"{what}: refused before the first request",
        told.status == "FAILED" and count == 0 and word in (told.error_message or ""),
        f"{told.status} {told.error_code}, {count} requests: {(told.error_message or '')[:200]}",
    )


# --- what fails, and is corrected ----------------------------------------------------------------------------------------------------


@line(
    "outputs",
    "5,000 rows, 3 whose suffix fails and is set aside: 4,997 rows out, 3 letters; corrected at the same path: 4,997 of the "
    "5,000 requests carry the first run's keys, 3 are new",
)
def corrected(ground: Ground, checks: Checks) -> None:
    """Live, and on the suspending path."""
    count = ground.size(5_000, 600)
    broken = [number * count // 5_000 for number in BROKEN_AT]
    whole = book(count)
    faulty = [f"broken-{number},1.00" if number in broken else text for number, text in enumerate(whole)]
    mended = [f"mended-{number},1.00" if number in broken else text for number, text in enumerate(whole)]
    for way, overrides in (("live", ()), ("suspending", SUSPENDING)):
        ledger = Ledger(ground, f"corrected-{way}", overrides=overrides)
        first = ledger.submit("book.txt", faulty)
        told = ledger.wait(first)
        rows, letters = _rows(ledger, first), ledger.app.dead_letters()
        named = sorted(letter.item_index for letter in letters if letter.item_index is not None)
        checks.that(
            f"{way}: {count - 3:,} rows out, 3 letters that name their items",
            told.status == "SUCCEEDED"
            and [row["account"] for row in rows] == _accounts(text for text in faulty if not text.startswith("broken"))
            and len(letters) == 3
            and named == broken,
            f"{told.status} {told.error_code or ''}, {len(rows):,} rows, {len(letters)} letters of items {named}",
        )
        second = ledger.submit("book.txt", mended)
        again = ledger.wait(second)
        before, after = ledger.keys(first), ledger.keys(second)
        same = sum(old == new for old, new in zip(before, after, strict=False))
        new = [number for number, key in enumerate(after) if key not in set(before)]
        checks.that(
            f"{way}: corrected: {count - 3:,} of {count:,} requests carry the first run's keys, 3 are new",
            again.status == "SUCCEEDED"
            and len(set(after)) == len(after) == count
            and same == count - 3
            and new == broken
            and len(_rows(ledger, second)) == count,
            f"{again.status} {again.error_code or ''}, {len(after):,} requests, {same:,} with the same key, {len(new)} new",
        )
        ledger.app.close()


def _accounts(lines: Iterable[str]) -> list[str]:
    return [text.partition(",")[0] for text in lines]


def _rows(ledger: Ledger, execution: str) -> list[dict[str, str]]:
    found = list(ledger.app.output.glob(f"*-{execution}.out"))
    if len(found) != 1:
        return []
    with found[0].open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@line(
    "outputs",
    "A row inserted at the top and one removed, key fields that name neither file nor row, 5 pairs of equal rows: only the "
    "inserted row has a new key",
)
def inserted(ground: Ground, checks: Checks) -> None:
    """Under the same name, and under another."""
    count = ground.size(2_000, 300)
    lines = book(count)
    for number in range(TWINS):
        lines[count // 2 + 10 * number] = lines[10 * number + 3]
    changed = ["new-account,77.00", *lines]
    removed = changed.pop(count // 4)
    ledger = Ledger(ground, "inserted")
    first = ledger.submit("book.txt", lines)
    told = ledger.wait(first)
    before = ledger.keys(first)
    checks.that(
        f"{TWINS} pairs of equal rows are {2 * TWINS} payments: no key twice in a file",
        told.status == "SUCCEEDED" and len(set(before)) == len(before) == count,
        f"{told.status}, {len(set(before)):,} keys of {len(before):,} requests",
    )
    for name in ("book.txt", "another.txt"):
        execution = ledger.submit(name, changed)
        told = ledger.wait(execution)
        after = ledger.keys(execution)
        new = [number for number, key in enumerate(after) if key not in set(before)]
        gone = [lines[number] for number, key in enumerate(before) if key not in set(after)]
        checks.that(
            f"inserted and removed, as {name}: one new key",
            told.status == "SUCCEEDED" and new == [0] and gone == [removed] and len(set(after)) == len(after) == count,
            f"{told.status}, {len(new):,} new keys, {len(gone):,} of before not asked again",
        )
