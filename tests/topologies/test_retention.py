"""`retention.executions` and `retention.keys`: what ended long ago is deleted in slices, that it ran is known for longer (DECISIONS 18)."""

from __future__ import annotations

from pathlib import Path

from connectors.objects.listing import identify
from state.keys import execution_key
from streams.doors.submissions import command_for_listed, send
from streams.testing.driver import TopologyTestDriver
from tests.topologies.outside import SECRET, price

SHOP = Path(__file__).parent / "pipelines"
PIPELINE = Path(__file__).parents[2] / "topologies" / "csv_payments" / "pipeline.yaml"
DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def payments(folder: Path, rows: int) -> Path:
    path = folder / f"payments_{rows}.csv"
    lines = ["ID,Recipient,Amount,Currency", *(f"{number},Ann,{number}.00,USD" for number in range(1, rows + 1))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def played(tmp_path: Path, *overrides: str) -> TopologyTestDriver:
    decision = {"status": "Complete", "reference": "101", "message": "m", "fee": "1.01", "statusCode": 1000}
    return TopologyTestDriver(
        PIPELINE,
        answer=lambda _request: decision,
        environ={"KAWAIT_TOKEN_K1": "k" * 32},
        overrides=[f"output.location={tmp_path / 'out'}", *overrides],
    )


def test_rows_of_what_ended_long_ago_are_deleted_and_the_rest_stays(tmp_path: Path) -> None:
    """2,500 rows need several slices; the younger execution keeps every row, in the tables and in the changelogs."""
    driver = played(tmp_path)
    old = driver.submit(file=payments(tmp_path, 2_500))
    driver.run()
    assert driver.status(old) == "SUCCEEDED"
    driver.advance(6 * DAY_MS)
    young = driver.submit(file=payments(tmp_path, 3))
    driver.run()
    before = {key for key in driver.rows() if young.encode() in key}
    driver.advance(DAY_MS + 2 * HOUR_MS)
    stub = execution_key(old)
    assert {key for key in driver.rows() if old.encode() in key} == {stub}
    assert {key for key in driver.rows() if young.encode() in key} == before
    driver.crash()
    driver.run()
    assert set(driver.rows()) == before | {stub}


def test_of_an_object_it_is_known_that_it_was_done_until_retention_keys_are_over(tmp_path: Path) -> None:
    driver, file = played(tmp_path, "retention.keys=P30D"), payments(tmp_path, 3)
    done = driver.submit(file=file)
    driver.run()
    ended = driver.execution(done)
    assert ended is not None
    driver.advance(8 * DAY_MS)
    stub = driver.execution(done)
    assert stub is not None
    assert (stub.forgotten, stub.status, stub.updated_at_ms) == (True, "SUCCEEDED", ended.updated_at_ms)
    assert (stub.input, stub.outputs, stub.source_sha256) == (b"", [], None)
    assert driver.submit(file=file) == done
    driver.run()
    assert len(driver.requests()) == 3, "it is a duplicate still"
    assert driver.execution(done) == stub
    driver.advance(22 * DAY_MS)
    assert driver.execution(done) == stub
    driver.advance(2 * DAY_MS)
    assert driver.execution(done) is None


def test_a_stub_tells_who_asks_how_it_ended(tmp_path: Path) -> None:
    driver, file = played(tmp_path), payments(tmp_path, 1)
    done = driver.submit(file=file)
    driver.run()
    driver.advance(8 * DAY_MS)
    command = command_for_listed(driver.pipeline, identify(file), reply_id="asking")
    send(driver.pipeline, driver.log.plain_producer(), command, timeout_s=1)
    driver.run()
    (told,) = [outcome for outcome in driver.replies() if outcome.reply_id == "asking"]
    assert (told.execution_id, told.status, told.duplicate) == (done, "SUCCEEDED", True)


def test_an_answer_to_what_is_forgotten_is_refused(tmp_path: Path) -> None:
    driver = played(tmp_path)
    driver.submit(file=payments(tmp_path, 1))
    driver.run()
    driver.advance(8 * DAY_MS)
    (request,) = driver.requests()
    driver.complete(request, {"status": "Complete", "reference": "1", "message": "m", "fee": "1", "statusCode": 1000})
    driver.run()
    assert [refusal.reason for refusal in driver.refusals()] == ["unknown"]


def test_what_somebody_submitted_by_hand_is_forgotten_whole() -> None:
    driver = TopologyTestDriver(SHOP / "scalar.yaml", answer=price, environ={"KAWAIT_TOKEN_K1": SECRET})
    done = driver.submit({"basket": "b", "sku": "apple"})
    driver.run()
    assert driver.status(done) == "SUCCEEDED"
    driver.advance(8 * DAY_MS)
    assert driver.execution(done) is None


def test_a_partition_that_is_never_idle_forgets_too(tmp_path: Path) -> None:
    """A record comes in before each turn, so no batch is ever empty."""
    driver = played(tmp_path, "kafka.partitions=1")
    driver.submit(file=payments(tmp_path, 2_500))
    driver.run()
    driver.clock.advance(8 * DAY_MS)
    turns = 0
    while len(driver.rows()) > 1:
        driver.send_raw(driver.names.completions, b"junk", partition=0)
        driver.clock.advance(100)
        driver.worker.loops["core"].step()
        turns += 1
        assert turns < 200
    assert turns > 3, "it takes its share, and no more"
