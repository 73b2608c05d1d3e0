"""Troublesome input files: each is read whole, or refused whole before the first payment, by name (SURFACE csv-payments)."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.acceptance.ground import Ground
from tests.acceptance.registry import Checks, line

csv.field_size_limit(1_000_000)
HEADER = "ID,Recipient,Amount,Currency\n"
GOOD = HEADER + "1,Ann,10.50,EUR\n2,Bob,7.3,USD\n"
PAIR = [("1", "Ann", "10.50"), ("2", "Bob", "7.30")]
Rows = list[tuple[str, str, str]]

READ: dict[str, tuple[bytes, Rows]] = {
    "BOM": (b"\xef\xbb\xbf" + GOOD.encode(), PAIR),
    "CRLF": (GOOD.replace("\n", "\r\n").encode(), PAIR),
    "CR": (GOOD.replace("\n", "\r").encode(), PAIR),
    "quoted newlines": (
        (HEADER + '1,"Ann\nof\r\nYork",10.50,EUR\n2,Bob,7.3,USD\n').encode(),
        [("1", "Ann\nof\r\nYork", "10.50"), PAIR[1]],
    ),
    "names in other case and order": (b"currency,amount, RECIPIENT ,id\nEUR,10.50,Ann,1\nUSD,7.3,Bob,2\n", PAIR),
    "thousands": ((HEADER + '1,Ann,"1,234.50",EUR\n').encode(), [("1", "Ann", "1234.50")]),
    "never rounded": ((HEADER + "1,Ann,0.005,EUR\n").encode(), [("1", "Ann", "0.005")]),
    "formula": ((HEADER + "1,=SUM(A1),-5,EUR\n").encode(), [("1", "'=SUM(A1)", "-5.00")]),
    "header only": (HEADER.encode(), []),
    "200 kB field": ((HEADER + "1," + "x" * 200_000 + ",1.00,EUR\n").encode(), [("1", "x" * 200_000, "1.00")]),
}
"""Name -> content and the rows that must come out: id, recipient, amount."""

REFUSED: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "cp1252": ((HEADER + "1,Zoë,1.00,EUR\n").encode("cp1252"), ("line 2", "not UTF-8")),
    "UTF-16": (GOOD.encode("utf-16"), ("UTF-16",)),
    "duplicate header": (b"ID,Recipient,Amount,amount,Currency\n1,Ann,1.00,2.00,EUR\n", ("line 1", "twice")),
    "missing header": (b"ID,Recipient,Amount\n1,Ann,1.00\n", ("line 1", "missing")),
    "bad amounts": (
        (HEADER + "1,Ann,1.00,EUR\n" + "".join(f"{n},Bob,1e{n},EUR\n" for n in range(2, 30))).encode(),
        ("28 bad rows", "record 2, line 3", "and 8 more"),
    ),
    "empty file": (b"", ("is empty",)),
    "unclosed quote": ((HEADER + '1,Ann,1.00,EUR\n2,"Bob,7.3,USD\n').encode(), ("line 3", "quote is not closed")),
}
"""Name -> content and words of the error."""


def _write(folder: Path, cases: dict[str, bytes]) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name.replace(' ', '_')}.csv" for name in cases}
    for name, path in paths.items():
        path.write_bytes(cases[name])
    return paths


@line(
    "csv_trouble", "CSV trouble: the named outcome, decided before the first payment is sent; the error names the file"
)
def trouble(ground: Ground, checks: Checks) -> None:
    """All files at once through one worker."""
    app = ground.app("trouble")
    app.provider()
    app.worker()
    good = _write(ground.folder / "trouble", {name: content for name, (content, _) in READ.items()})
    bad = _write(ground.folder / "trouble", {name: content for name, (content, _) in REFUSED.items()})
    ids = {name: app.submit(path) for name, path in {**good, **bad}.items()}
    told = app.wait(list(ids.values()))
    requests = app.requests()
    for name, (_, rows) in READ.items():
        reply = told[ids[name]]
        made = app.output / f"{good[name].name}.out"
        found: Rows = []
        if made.exists():
            with made.open(encoding="utf-8", newline="") as file:
                found = [(row["csvId"], row["recipient"], row["amount"]) for row in csv.DictReader(file)]
        checks.that(
            f"{name}: read",
            reply.status == "SUCCEEDED" and found == rows,
            f"{reply.status}, {len(found)} rows" + (f"; {reply.error_message}" if reply.error_message else ""),
        )
    letters = app.dead_letters()
    for name, (_, words) in REFUSED.items():
        reply, message = told[ids[name]], told[ids[name]].error_message or ""
        sent = sum(count for iid, count in requests.items() if iid.startswith(ids[name]))
        checks.that(
            f"{name}: refused before the first payment, by name",
            reply.status == "FAILED"
            and sent == 0
            and bad[name].name in message
            and all(word in message for word in words)
            and any(letter.execution_id == ids[name] for letter in letters),
            f"{reply.status}, {sent} requests: {message[:160]}",
        )
