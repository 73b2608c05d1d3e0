"""Files that change while they are read, and files that are still on their way: what was submitted is what is asked, or nothing."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from schemas.envelopes import ExecutionOutcome
from schemas.facts import RunSubmitted, SourceEnded
from tests.acceptance.ground import AWAIT, App, Ground
from tests.acceptance.outside import requests_of
from tests.acceptance.registry import Checks, line

AT_A_TIME = 10
WINDOW = 256
"""Rows without an answer: so few that a file is read as long as it is paid."""
APPENDED_ROWS = 200
CHANGED_CODE = "SOURCE_CHANGED"
INTRUDER = "Nobody"
"""A recipient whom no submitted file has."""

SETTLE_S = 2.0
PAUSE_S = 0.6 * SETTLE_S
CUT_S = 10.0
"""How long an upload stands still inside a line: less than ten times `settle`."""
PAID_S = 15 * SETTLE_S
CUT_BYTES = 5
"""So much of its line is missing: `1234.56` looks like 123."""
READY_S = 12.0
"""How long a whole file waits for its mark; any time is like any other, a minute would show the same."""
UPLOAD_ROWS = 400

Payment = tuple[str, str, Decimal]


def payments_in(content: bytes) -> list[Payment]:
    """What a whole file asks for."""
    rows = csv.DictReader(content.decode().splitlines())
    return [(row["ID"], row["Recipient"], Decimal(row["Amount"].replace(",", ""))) for row in rows]


def payments_out(path: Path) -> list[Payment]:
    """What an output file says was paid."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [(row["csvId"], row["recipient"], Decimal(row["amount"])) for row in rows]


def asked_by_file(app: App) -> dict[str, list[Payment]]:
    """Every committed request, by the name of its file."""
    found: defaultdict[str, list[Payment]] = defaultdict(list)
    for request in requests_of(app):
        paid = request.payload
        name = Path(paid["csvPaymentsInputFilePath"]).name
        found[name].append((paid["csvId"], paid["recipient"], Decimal(paid["amount"])))
    return found


# --- how a file changes --------------------------------------------------------------------------------------------------------------


def _append(path: Path, content: bytes, chance: random.Random) -> None:
    del content, chance
    rows = "".join(f"{900_000 + number},{INTRUDER},1.00,EUR\n" for number in range(APPENDED_ROWS))
    with path.open("ab") as file:
        file.write(rows.encode())


def _truncate(path: Path, content: bytes, chance: random.Random) -> None:
    os.truncate(path, content.rindex(b"\n", 0, chance.randrange(200, len(content))) + 1)


def _other(content: bytes) -> bytes:
    """As many bytes, as many rows, each to somebody else: the last row comes first, and every ID is another."""
    head, *rows = content.splitlines(keepends=True)
    return head + b"".join(b"9" + row[1:] for row in reversed(rows))


def _overwrite(path: Path, content: bytes, chance: random.Random) -> None:
    """In place; half the time the old time of change is set again."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(_other(content))
    if chance.random() < 0.5:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path: Path, content: bytes, chance: random.Random) -> None:
    """By another file of equal size and time of change."""
    del chance
    before, other = path.stat(), path.with_suffix(".tmp")
    other.write_bytes(_other(content))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


CHANGES: dict[str, Callable[[Path, bytes, random.Random], None]] = {
    "appended to": _append,
    "truncated": _truncate,
    "overwritten": _overwrite,
    "replaced": _replace,
}


@dataclass
class Victim:
    """A file that changes, and what came of it."""

    path: Path
    kind: str
    after_s: float
    execution: str = ""
    content: bytes = b""
    told: ExecutionOutcome | None = None


@line(
    "changing_files",
    "A file appended to, truncated, overwritten or replaced at 50 random moments of 2,000 rows: exactly the submitted rows, or "
    "SOURCE_CHANGED with no other row asked",
)
def changing(ground: Ground, checks: Checks) -> None:
    """Some at a time through one worker; moments are drawn over the time that undisturbed files take."""
    rows, count = ground.size(2_000, 500), ground.size(50, 12)
    chance = random.Random(ground.seed)
    app = ground.app("changing", overrides=(f"{AWAIT}.await.live.window={WINDOW}",))
    app.provider()
    app.worker()
    usual = [ground.payments(rows, name=f"usual_{number}.csv", seed=number) for number in range(AT_A_TIME)]
    app.wait([app.submit(path) for path in usual])
    read_s = _read_s(app)
    kinds = [list(CHANGES)[number % len(CHANGES)] for number in range(count)]
    victims: list[Victim] = []
    for number in range(0, count, AT_A_TIME):
        group = [
            Victim(
                ground.payments(rows, name=f"changing_{index}.csv", seed=100 + index),
                kinds[index],
                chance.uniform(0, read_s),
            )
            for index in range(number, min(number + AT_A_TIME, count))
        ]
        _disturb(app, group, chance)
        victims += group
    asked = asked_by_file(app)
    for kind in CHANGES:
        _judge(app, [victim for victim in victims if victim.kind == kind], asked, checks, kind)
    checks.note("moments", f"{count} within {read_s:.2f} s, in which {AT_A_TIME} files of {rows} rows are read")


def _read_s(app: App) -> float:
    """From the first submission until the last file has been read."""
    known = list(app.facts())
    began = min(fact.at_ms for fact in known if isinstance(fact, RunSubmitted))
    ended = max(fact.at_ms for fact in known if isinstance(fact, SourceEnded))
    return (ended - began) / 1000


def _disturb(app: App, group: list[Victim], chance: random.Random) -> None:
    """Submit all, change each at its moment, wait for the ends."""
    began_s = time.monotonic()
    for victim in group:
        victim.content = victim.path.read_bytes()
        victim.execution = app.submit(victim.path)
    for victim in sorted(group, key=lambda each: each.after_s):
        time.sleep(max(0.0, began_s + victim.after_s - time.monotonic()))
        CHANGES[victim.kind](victim.path, victim.content, chance)
    told = app.wait([victim.execution for victim in group])
    for victim in group:
        victim.told = told[victim.execution]


def _judge(app: App, victims: list[Victim], asked: dict[str, list[Payment]], checks: Checks, kind: str) -> None:
    faults: list[str] = []
    ends: Counter[str] = Counter()
    for victim in victims:
        assert victim.told is not None
        submitted = payments_in(victim.content)
        end = victim.told.error_code or victim.told.status
        ends[end] += 1
        strangers = set(asked[victim.path.name]) - set(submitted)
        if strangers:
            faults.append(f"{victim.path.name}: {len(strangers)} rows were asked that were not submitted")
        if end == "SUCCEEDED":
            paid = payments_out(app.output / f"{victim.path.name}.out")
            if paid != submitted:
                faults.append(f"{victim.path.name}: {end} with {len(paid)} of {len(submitted)} rows, or others")
        elif end != CHANGED_CODE:
            faults.append(f"{victim.path.name}: {end}: {(victim.told.error_message or '')[:120]}")
    checks.that(
        f"{kind}: the submitted rows, or {CHANGED_CODE}",
        not faults,
        f"{dict(ends)}" + (f"; {len(faults)} faults: {'; '.join(faults[:2])}" if faults else ""),
    )


# --- files on their way --------------------------------------------------------------------------------------------------------------


@dataclass
class Upload:
    """A file on its way: what is done to it, each so many seconds after the beginning; the last makes it whole."""

    app: App
    path: Path
    content: bytes
    what: str
    deeds: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    asked_early: int = 0

    def add(self, at_s: float, piece: bytes) -> None:
        """Write a piece at a time."""
        self.deeds.append((at_s, lambda: self._append(piece)))

    def _append(self, piece: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(piece)


def _amounts_last(path: Path) -> bytes:
    """A file whose rows end in the amount, so that a row that is cut there is a row all the same."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(name, whom, currency, amount.replace(",", "")) for name, whom, amount, currency in csv.reader(file)]
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue().encode()


def _pieces(content: bytes, parts: int, *, inside: bool) -> list[bytes]:
    """A file in parts that end where a line does, or inside one."""
    cuts = [content.index(b"\n", len(content) * number // parts) + 1 for number in range(1, parts)]
    cuts = [cut - CUT_BYTES if inside else cut for cut in cuts]
    return [content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]


@line(
    "changing_files",
    "Uploads with pauses shorter than settle, cut inside a line for 10 s, or marked by a ready file: nothing asked before they are whole",
)
def on_the_way(ground: Ground, checks: Checks) -> None:
    """Both ways of knowing that a file is whole run side by side."""
    folder = ("input.poll=PT0.3S", f"input.settle=PT{SETTLE_S:g}S")
    app = ground.app("uploads", overrides=folder)
    marked = ground.app("marked", overrides=(*folder, "input.ready.suffix=.done"))
    for each in (app, marked):
        each.provider()
        each.worker()
    contents = [
        _amounts_last(ground.payments(UPLOAD_ROWS, name=f"upload_{number}.csv", seed=200 + number))
        for number in range(3)
    ]
    paused = Upload(
        app, app.folder / "in" / "paused.csv", contents[0], f"pauses of {PAUSE_S:g} s, settle {SETTLE_S:g} s"
    )
    for number, piece in enumerate(_pieces(contents[0], 6, inside=False)):
        paused.add(number * PAUSE_S, piece)
    cut = Upload(app, app.folder / "in" / "cut.csv", contents[1], f"cut inside a line for {CUT_S:g} s")
    for number, piece in enumerate(_pieces(contents[1], 2, inside=True)):
        cut.add(number * CUT_S, piece)
    whole = Upload(marked, marked.folder / "in" / "marked.csv", contents[2], f"not marked for {READY_S:g} s")
    whole.add(0.0, contents[2])
    whole.deeds.append((READY_S, (marked.folder / "in" / "marked.csv.done").touch))
    for upload in _uploaded([paused, cut, whole]):
        out = upload.app.output / f"{upload.path.name}.out"
        with contextlib.suppress(TimeoutError):
            upload.app.until(out.exists, f"{upload.path.name} to be paid", timeout_s=PAID_S)
        asked, submitted = asked_by_file(upload.app)[upload.path.name], payments_in(upload.content)
        checks.that(
            f"{upload.what}: nothing asked before it is whole, then all of it, once",
            upload.asked_early == 0 and Counter(asked) == Counter(submitted) and payments_out(out) == submitted,
            f"{upload.asked_early} requests before its last piece; {len(asked)} in all of {len(submitted)} rows",
        )


def _uploaded(uploads: list[Upload]) -> list[Upload]:
    """Do every deed at its time; look at what was asked right before each last one."""
    began_s = time.monotonic()
    plan = [(at_s, upload, deed) for upload in uploads for at_s, deed in upload.deeds]
    for at_s, upload, deed in sorted(plan, key=lambda each: each[0]):
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        if deed is upload.deeds[-1][1]:
            upload.asked_early = len(asked_by_file(upload.app)[upload.path.name])
        deed()
    return uploads
