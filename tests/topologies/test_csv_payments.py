"""csv-payments as shipped, on the driver: both paths byte for byte, and every trouble that a CSV file can have (SURFACE csv-payments)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streams.demo.payments_file import generate
from streams.demo.provider_answers import APPROVAL, REJECTION, rejected
from streams.demo.run import SAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from schemas.envelopes import RequestEnvelope
    from streams.testing.driver import TopologyTestDriver

RESULTS = "csv-payments.payment.results"
HEADER = "csvId,recipient,amount,currency,status,message,reference,fee,conversationId"


def decision(request: RequestEnvelope) -> Any:
    csv_id = json.loads(bytes(request.request_payload))["csvId"]
    return json.loads(bytes(REJECTION if rejected(csv_id, 0.08) else APPROVAL))


@pytest.fixture(params=["live={window: 64, idle: PT30S}", "live=false"], ids=["live", "no-live"])
def pay(request: pytest.FixtureRequest, make: Any, tmp_path: Path) -> Callable[[Path], tuple[TopologyTestDriver, str]]:
    """Pays a file to its end, the provider answering in turns."""

    def paid(file: Path) -> tuple[TopologyTestDriver, str]:
        sets = (
            f"output.location={tmp_path / 'out'}",
            f"steps.await-payment-provider.await.{request.param}",
            "kafka.partitions=2",
        )
        driver: TopologyTestDriver = make("csv-payments", sets=sets, answer=decision)
        execution = driver.submit(file=file)
        driver.run()
        return driver, execution

    return paid


def written(folder: Path, content: bytes | str, name: str = "payments.csv") -> Path:
    (folder / "in").mkdir(exist_ok=True)
    file = folder / "in" / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def output(driver: TopologyTestDriver, execution: str) -> list[dict[str, str]]:
    """Rows of the only output file."""
    row = driver.execution(execution)
    assert row is not None
    assert row.status == "SUCCEEDED", row
    (path,) = row.outputs
    text = Path(path).read_bytes().decode()
    assert text.split("\r\n", 1)[0] == HEADER
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_twelve_rows(pay: Any, tmp_path: Path) -> None:
    """Issue 3 'It must show': 12 rows in, 12 out, 8 rejected, in input order."""
    file = written(tmp_path, SAMPLE.read_bytes(), SAMPLE.name)
    driver, execution = pay(file)
    rows = output(driver, execution)
    assert [row["csvId"] for row in rows] == [
        row["ID"] for row in csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines())
    ]
    assert [row["status"] for row in rows].count("Rejected") == 8
    assert len(driver.records("csv-payments.payment.requests")) == 12


def test_both_paths_and_any_order_give_the_same_bytes(make: Any, tmp_path: Path) -> None:
    """DESIGN 7 'same outputs, in input order': live, live with a small window, parked half-way, suspending; answers in several orders."""
    file = generate(tmp_path / "in" / "many.csv", 300)
    seen = set()
    runs = [
        ("live=false", 1),
        ("live=false", -1),
        ("live={window: 7, idle: PT30S}", -1),
        ("live={window: 4096, idle: PT1S}", 1),
    ]
    for number, (path, turn) in enumerate(runs):
        sets = (
            f"output.location={tmp_path / str(number)}",
            f"steps.await-payment-provider.await.{path}",
            "kafka.partitions=2",
        )
        driver = make("csv-payments", sets=sets)
        execution = driver.submit(file=file)
        driver.run()
        while requests := driver.new_requests():
            for place, request in enumerate(requests[::turn]):
                driver.complete(request, decision(request))
                if place % 100 == 50:
                    driver.advance(1_100)
                if place == 120:
                    driver.crash()
            driver.run()
        assert driver.status(execution) == "SUCCEEDED"
        assert len(driver.requests()) == 300
        seen.add(Path(driver.execution(execution).outputs[0]).read_bytes())
    assert len(seen) == 1


ROWS = [("1", "Ann", "10.50", "EUR"), ("2", "Bo", "1234.5", "USD")]
PLAIN = "ID,Recipient,Amount,Currency\n1,Ann,10.50,EUR\n2,Bo,1234.5,USD\n"

GOOD: dict[str, bytes] = {
    "plain": PLAIN.encode(),
    "bom": b"\xef\xbb\xbf" + PLAIN.encode(),
    "bom-quoted-header": b'\xef\xbb\xbf"ID",Recipient,Amount,Currency\n' + PLAIN.split("\n", 1)[1].encode(),
    "crlf": PLAIN.replace("\n", "\r\n").encode(),
    "cr": PLAIN.replace("\n", "\r").encode(),
    "mixed": PLAIN.replace("\n", "\r\n", 1).replace("EUR\n", "EUR\r").encode(),
    "no-final-newline": PLAIN.rstrip("\n").encode(),
    "blank-lines": PLAIN.replace("\n", "\n\n").encode() + b"\r\n\n",
    "header-case-and-blanks": PLAIN.replace(
        "ID,Recipient,Amount,Currency", " id ,RECIPIENT, amount,currency "
    ).encode(),
    "other-order": b"Currency,Amount,Recipient,ID\nEUR,10.50,Ann,1\nUSD,1234.5,Bo,2\n",
    "thousands": PLAIN.replace("1234.5", '"1,234.5"').encode(),
}


@pytest.mark.parametrize("kind", GOOD)
def test_files_that_differ_in_writing_only_are_paid_alike(pay: Any, tmp_path: Path, kind: str) -> None:
    """CASES 107, 109, 110, 112: BOM, line ends, blank lines, header case and order, thousands commas: the same payments."""
    rows = output(*pay(written(tmp_path, GOOD[kind])))
    assert [(row["csvId"], row["recipient"], row["amount"], row["currency"]) for row in rows] == [
        ("1", "Ann", "10.50", "EUR"),
        ("2", "Bo", "1234.50", "USD"),
    ]


@pytest.mark.parametrize("inside", ["\n", "\r\n", "\r", ", ", '""', "\u2028", "–", "漢字 😀"])
def test_a_quoted_text_is_kept_as_it_is(pay: Any, tmp_path: Path, inside: str) -> None:
    """CASES 109, SURFACE 'RFC 4180': line ends, commas and quotes inside quotes reach the request and the output unchanged."""
    file = written(tmp_path, f'ID,Recipient,Amount,Currency\n1,"Ann{inside}Lee",10.50,EUR\n')
    driver, execution = pay(file)
    (row,) = output(driver, execution)
    text = f"Ann{inside}Lee".replace('""', '"')
    assert row["recipient"] == text
    (request,) = driver.requests()
    assert json.loads(bytes(request.request_payload))["recipient"] == text


BAD: dict[str, tuple[bytes, str]] = {
    "cp1252": (PLAIN.encode() + "3,Caf\u00e9 \u2013 Bar,1.00,EUR\n".encode("cp1252"), "line 4"),
    "utf-16": (PLAIN.encode("utf-16"), "UTF-16"),
    "utf-16-without-mark": (PLAIN.encode("utf-16-le"), "UTF-16"),
    "duplicate-header": (b"ID,Recipient,Amount,Amount,Currency\n1,Ann,1,2,EUR\n", "'Amount' appears twice"),
    "duplicate-header-by-case": (b"ID,id,Recipient,Amount,Currency\n1,1,Ann,2,EUR\n", "appears twice"),
    "missing-header": (b"ID,Recipient,Amount\n1,Ann,1\n", "Currency is missing"),
    "no-header": (b"1,Ann,1.00,EUR\n", "is missing"),
    "empty": (b"", "is empty"),
    "only-blank-lines": (b"\n\r\n\n", "is empty"),
    "unclosed-quote": (PLAIN.encode() + b'3,"Ann,1.00,EUR\n4,Bo,1.00,EUR\n', "a quote is not closed"),
    "comma-as-decimal": (PLAIN.encode() + b'3,Ann,"1,5",EUR\n', "record 3, line 4"),
    "amount-text": (PLAIN.encode() + b"3,Ann,ten,EUR\n", "record 3, line 4"),
    "amount-empty": (PLAIN.encode() + b"3,Ann,,EUR\n", "record 3, line 4"),
    "amount-infinite": (PLAIN.encode() + b"3,Ann,Infinity,EUR\n", "record 3, line 4"),
    "amount-nan": (PLAIN.encode() + b"3,Ann,NaN,EUR\n", "record 3, line 4"),
    "amount-exponent": (PLAIN.encode() + b"3,Ann,1E+999999,EUR\n", "record 3, line 4"),
    "amount-underscore": (PLAIN.encode() + b"3,Ann,1_000,EUR\n", "record 3, line 4"),
    "amount-arabic-digits": (PLAIN.encode() + "3,Ann,١٢,EUR\n".encode(), "record 3, line 4"),
    "too-many-fields": (PLAIN.encode() + b"3,Ann,1.00,EUR,extra\n", "5 fields instead of 4"),
    "too-few-fields": (PLAIN.encode() + b"3,Ann\n", "2 fields instead of 4"),
    "no-id": (PLAIN.encode() + b",Ann,1.00,EUR\n", "ID is empty"),
    "nul": (PLAIN.encode() + b"3,A\0nn,1.00,EUR\n", "NUL"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_cannot_be_paid_is_refused_before_its_first_payment(pay: Any, tmp_path: Path, kind: str) -> None:
    """CASES 112, 113, SURFACE: nothing was sent, one dead letter, which names the file and the place; no retry, no output."""
    content, says = BAD[kind]
    driver, execution = pay(written(tmp_path, content, "invoices of may.csv"))
    assert driver.status(execution) == "FAILED"
    assert driver.records("csv-payments.payment.requests") == []
    assert "BoundaryInteractionDispatched" not in driver.fact_names(execution)
    assert "SegmentAttemptFailed" not in driver.fact_names(execution)
    (letter,) = driver.dead_letters()
    assert (letter.kind, letter.execution_id) == ("execution", execution)
    assert "invoices of may.csv" in letter.detail
    assert says in letter.detail
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
    assert driver.execution(execution).error_message == letter.detail


def test_twenty_bad_rows_are_listed(pay: Any, tmp_path: Path) -> None:
    """SURFACE: up to 20 bad rows, and how many there are."""
    bad = "".join(f"{number},Ann,x{number},EUR\n" for number in range(3, 53))
    driver, _ = pay(written(tmp_path, PLAIN + bad))
    detail = driver.dead_letters()[0].detail
    assert detail.count("record ") == 20
    assert "50 bad rows" in detail
    assert "and 30 more" in detail


def test_a_header_only_is_an_empty_output(pay: Any, tmp_path: Path) -> None:
    """DESIGN 8.5: no payments is not an error: a file with a header comes out."""
    driver, execution = pay(written(tmp_path, "ID,Recipient,Amount,Currency\n"))
    assert output(driver, execution) == []
    assert driver.requests() == []


def test_a_field_of_200_kb(pay: Any, tmp_path: Path) -> None:
    """SURFACE, issue 3: longer than Python's own limit, paid as ever; the idempotency key stays short."""
    long = "x" * 200_000
    driver, execution = pay(written(tmp_path, PLAIN + f"3,{long},1.00,EUR\n"))
    assert output(driver, execution)[2]["recipient"] == long
    assert len(driver.requests()[2].idempotency_key) < 600


def test_a_field_beyond_the_limit(pay: Any, tmp_path: Path) -> None:
    """CASES 88, DESIGN 8.11: over a limit: a clear error, before the first payment."""
    driver, execution = pay(written(tmp_path, PLAIN + f"3,{'x' * 2_000_000},1.00,EUR\n"))
    assert driver.status(execution) == "FAILED"
    assert "payments.csv" in driver.dead_letters()[0].detail
    assert driver.requests() == []


def test_texts_that_a_spreadsheet_would_run(pay: Any, tmp_path: Path) -> None:
    """CASES 115: text cells get an apostrophe, amounts never do and keep their digits."""
    driver, execution = pay(written(tmp_path, "ID,Recipient,Amount,Currency\n1,=cmd(),-12.50,EUR\n2,@x,1.005,EUR\n"))
    rows = output(driver, execution)
    assert [row["recipient"] for row in rows] == ["'=cmd()", "'@x"]
    assert [row["amount"] for row in rows] == ["-12.50", "1.005"]


def test_a_good_file_is_not_held_by_a_bad_neighbour(pay: Any, tmp_path: Path) -> None:
    """DESIGN 8.7: one execution a file; the bad one fails alone. Two files may hold the same row: both are paid (CASES 25)."""
    driver, bad = pay(written(tmp_path, "nonsense", "bad.csv"))
    good = [driver.submit(file=written(tmp_path, PLAIN, f"good{number}.csv")) for number in range(2)]
    driver.run()
    assert driver.status(bad) == "FAILED"
    assert [driver.status(execution) for execution in good] == ["SUCCEEDED", "SUCCEEDED"]
    keys = [request.idempotency_key for request in driver.requests()]
    assert len(keys) == len(set(keys)) == 4


def test_the_file_that_vanished_before_it_was_read(pay: Any, tmp_path: Path) -> None:
    """BEHAVIOUR 4.12: an object that is gone fails its execution with its name; nothing is sent."""
    file = written(tmp_path, PLAIN)
    driver, execution = pay(file)
    assert driver.status(execution) == "SUCCEEDED"
    gone = written(tmp_path, PLAIN, "gone.csv")
    late = driver.submit(file=gone)
    gone.unlink()
    driver.run()
    for _ in range(5):
        driver.advance(600_000)
    assert driver.status(late) == "FAILED"
    assert "gone.csv" in driver.dead_letters()[0].detail
