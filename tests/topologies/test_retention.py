"""`retention.executions`: what ended long ago is deleted in slices, what is open stays (DESIGN 7)."""

from __future__ import annotations

from pathlib import Path

from streams.testing.driver import TopologyTestDriver

PIPELINE = Path(__file__).parents[2] / "topologies" / "csv_payments" / "pipeline.yaml"
DAY_MS = 86_400_000
HOUR_MS = 3_600_000


def payments(folder: Path, rows: int) -> Path:
    path = folder / f"payments_{rows}.csv"
    lines = ["ID,Recipient,Amount,Currency", *(f"{number},Ann,{number}.00,USD" for number in range(1, rows + 1))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_of_what_ended_long_ago_are_deleted_and_the_rest_stays(tmp_path: Path) -> None:
    """2,500 rows need several slices; the younger execution keeps every row, in the tables and in the changelogs."""
    decision = {"status": "Complete", "reference": "101", "message": "m", "fee": "1.01", "statusCode": 1000}
    driver = TopologyTestDriver(
        PIPELINE,
        answer=lambda _request: decision,
        environ={"KAWAIT_TOKEN_K1": "k" * 32},
        overrides=[f"output.location={tmp_path / 'out'}"],
    )
    old = driver.submit(file=payments(tmp_path, 2_500))
    driver.run()
    assert driver.status(old) == "SUCCEEDED"
    driver.advance(6 * DAY_MS)
    young = driver.submit(file=payments(tmp_path, 3))
    driver.run()
    before = {key for key in driver.rows() if young.encode() in key}
    driver.advance(DAY_MS + 2 * HOUR_MS)
    assert driver.status(old) is None
    assert {key for key in driver.rows() if old.encode() in key} == set()
    assert {key for key in driver.rows() if young.encode() in key} == before
    driver.crash()
    driver.run()
    assert set(driver.rows()) == before
