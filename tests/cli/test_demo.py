"""`kawait demo` on the memory log: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from streams.demo.memory import memory_stage
from streams.demo.run import SAMPLE, DemoSettings

Run = Callable[..., Result]
LARGER_SAMPLE = Path(__file__).parents[1] / "data" / "payments_1k.csv"


def last_line(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_sample_has_12_rows_in_and_12_out_8_of_them_rejected(run: Run, tmp_path: Path) -> None:
    result = run("demo", "--json", "--output", tmp_path)
    assert result.exit_code == 0, result.output
    found = last_line(result)
    assert list(found) == [
        "rows",
        "approved",
        "rejected",
        "failed",
        "seconds",
        "rowsPerSecond",
        "outputs",
        "broker",
        "live",
    ]
    assert (found["rows"], found["approved"], found["rejected"], found["failed"]) == (12, 4, 8, 0)
    assert (found["broker"], found["live"]) == ("memory", True)
    assert 0 < found["seconds"] < 30
    rows = rows_of(found["outputs"][0])
    with SAMPLE.open(encoding="utf-8", newline="") as file:
        assert [row["csvId"] for row in rows] == [row["ID"] for row in csv.DictReader(file)]


def test_a_person_sees_the_file_and_its_first_lines(run: Run, tmp_path: Path) -> None:
    result = run("demo", "--output", tmp_path)
    assert result.exit_code == 0
    shown = result.stdout.splitlines()
    assert shown[0] == str(tmp_path / "payments_12.csv.out")
    assert shown[1].strip().startswith("csvId,recipient,amount")
    assert "12 payments in memory: 4 approved, 8 rejected" in shown[-1]
    assert result.stderr == ""


def test_a_broker_of_its_own_is_said_to_be_young(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(settings: DemoSettings, environ: dict[str, str], folder: Path, **_: object) -> object:
        return memory_stage(settings, environ, folder)

    monkeypatch.setattr("streams.demo.kafka.kafka_stage", stage)
    young = run("demo", "--kafka", "--json", "--output", tmp_path)
    assert last_line(young)["rows"] == 12
    assert young.stderr.splitlines()[-1].startswith("This broker has just started")
    monkeypatch.setenv("KAWAIT_BOOTSTRAP", "127.0.0.1:1")
    given = run("demo", "--kafka", "--output", tmp_path)
    assert "just started" not in given.output


def test_the_suspending_path_writes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    live = last_line(run("demo", "--json", "--rows", 300, "--output", tmp_path))
    kept = Path(live["outputs"][0]).read_bytes()
    parked = last_line(run("demo", "--json", "--rows", 300, "--output", tmp_path, "--no-live", "--workers", 2))
    assert (live["live"], parked["live"]) == (True, False)
    assert parked["rows"] == 300
    assert Path(parked["outputs"][0]).read_bytes() == kept


def test_several_inputs_have_an_output_each(run: Run, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.csv" for name in "ab"]
    for file in files:
        file.write_text("ID,Recipient,Amount,Currency\n1,Ann,1.00,EUR\n")
    found = last_line(run("demo", "--json", "--input", files[0], "--input", files[1], "--output", tmp_path / "out"))
    assert found["rows"] == 2
    assert [Path(path).name for path in found["outputs"]] == ["a.csv.out", "b.csv.out"]


def test_the_reject_rate_decides(run: Run, tmp_path: Path) -> None:
    found = last_line(run("demo", "--json", "--reject-rate", 0, "--output", tmp_path))
    assert (found["approved"], found["rejected"]) == (12, 0)
    # The same names again with other answers: the demo's earlier output gives way.
    found = last_line(run("demo", "--json", "--reject-rate", 1, "--output", tmp_path))
    assert (found["approved"], found["rejected"]) == (0, 12)


def test_a_bad_file_is_named_with_its_rows_and_good_ones_are_paid(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("ID,Recipient,Amount,Currency\n1,Ann,much,EUR\n2,Bob,2.00,EUR\n")
    result = run("demo", "--json", "--input", bad, "--input", SAMPLE, "--output", tmp_path / "out")
    assert result.exit_code == 1
    found = last_line(result)
    assert (found["rows"], found["approved"], found["rejected"], found["failed"]) == (14, 4, 8, 2)
    assert "bad.csv" in result.stderr
    assert "line 2" in result.stderr
    assert "much" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out" / "bad.csv.out").exists()


def test_a_file_with_only_a_header_has_an_output_with_only_a_header(run: Run, tmp_path: Path) -> None:
    found = last_line(run("demo", "--json", "--rows", 0, "--output", tmp_path))
    assert (found["rows"], found["rowsPerSecond"]) == (0, 0)
    assert rows_of(found["outputs"][0]) == []


def test_two_inputs_of_one_name_would_overwrite_each_other(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    twin = tmp_path / "sub" / SAMPLE.name
    twin.write_bytes(SAMPLE.read_bytes())
    result = run("demo", "--input", SAMPLE, "--input", twin, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert "two inputs are named payments_12.csv" in result.stderr


def test_an_output_folder_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("demo", "--output", tmp_path / "file")
    assert result.exit_code == 1
    assert f"{tmp_path / 'file'} cannot be written" in result.stderr


def test_the_sample_is_the_beginning_of_the_larger_one() -> None:
    """So the outcome of a row is the same in both."""
    assert LARGER_SAMPLE.read_bytes().startswith(SAMPLE.read_bytes().rstrip())
