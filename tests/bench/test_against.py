"""A commit against this tree: what is compared and how it is judged; and one small turn on a real broker."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from bench import checkout, compare, installed, limit, topics
from bench.place import ROOT, Place, machine
from schemas import codec
from schemas.facts import ContinuationCompleted, RunCancelled
from streams.log.kafka.connection import connection

RATE, TIME = "live rows/s", "1 in flight p50 ms"
SMALL = compare.Load(rows=100, warm_up_rows=20, latency={4: 20})


def ratio(*ratios: float, measure: str = RATE) -> compare.Ratio:
    return compare.Ratio(measure=measure, base=100.0, new=100.0, ratios=list(ratios))


@pytest.fixture
def compared() -> compare.Compared:
    """Three pairs, with made-up figures."""
    found = compare.Compared(base="1234567", new="new", load=SMALL, machine=machine())
    for rate in (900.0, 1_100.0, 1_000.0):
        cpu = {"live core us/row": 100.0, "live offsets/row": 9.0}
        found.pairs.append(({**cpu, RATE: 1_000.0, TIME: 20.0}, {**cpu, RATE: rate, TIME: 25.0}))
    return found


def test_a_ratio_is_the_median_over_pairs_with_its_spread(compared: compare.Compared) -> None:
    first, second, *others = compared.ratios()
    assert (first.measure, first.median, first.spread) == (RATE, 1.0, (0.9, 1.1))
    assert (second.measure, second.median) == (TIME, 1.25)
    assert not any(other.is_judged for other in others)


def test_a_measure_that_one_turn_lacks_is_not_compared(compared: compare.Compared) -> None:
    del compared.pairs[1][1][TIME]
    assert TIME not in [found.measure for found in compared.ratios()]
    compared.pairs.clear()
    assert compared.ratios() == []


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (ratio(0.9, 1.0, 1.1), "met: the median is 1.00"),
        (ratio(0.8, 0.9, 1.0), "open: within 0.80 to 1.00, but of 3 pairs, not 9"),
        (ratio(*[0.9] * 8, 1.0), "met: within 0.90 to 1.00 of 9 pairs, the median is 0.90"),
        (ratio(*[0.8] * 8, 0.9), "missed: at most 0.90"),
        # A time that is longer by a quarter is a speed of 0.80.
        (ratio(1.25, 1.25, 1.25, measure=TIME), "missed: at most 0.80"),
        (ratio(0.5, 0.5, 2.0, measure=TIME), "met: the median is 2.00"),
    ],
)
def test_at_least_is_met_by_the_median_or_within_nine_pairs(found: compare.Ratio, says: str) -> None:
    assert compare.verdict(found, 0.95) == says


def test_a_comparison_is_shown_and_written(compared: compare.Compared, tmp_path: Path) -> None:
    shown = compare.table(compared, 0.95)
    assert shown.rows[0] == [RATE, "1,000", "1,000", "1.000", "0.900 to 1.100", "met: the median is 1.00"]
    assert shown.rows[-1][-1] == ""
    assert len(compare.table(compared, None).rows[0]) == len(shown.rows[0]) - 1
    compared.write(tmp_path / "against.json", 0.95)
    told = json.loads((tmp_path / "against.json").read_text(encoding="utf-8"))
    assert [line["verdict"] for line in told["ratios"][:2]] == ["met: the median is 1.00", "missed: at most 0.80"]
    assert len(told["pairs"]) == 3


# --- a warm broker -----------------------------------------------------------------------------------------------------------------


def rates(monkeypatch: pytest.MonkeyPatch, *rows_per_s: float) -> None:
    """What the limit measures, run by run."""
    left = iter(rows_per_s)
    monkeypatch.setattr(limit, "script", lambda: Path("limit.py"))
    monkeypatch.setattr(
        limit, "measure", lambda *_: limit.Limit(rows=1, rows_per_s=next(left), wall_s=1.0, cpu_s={"core": 1.0})
    )


def test_a_broker_is_warm_when_two_runs_in_a_row_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rates(monkeypatch, 20_000, 30_000, 20_500, 40_000, 42_000)
    warming = limit.warm_up("nowhere", 1, lambda _line: None)
    assert warming.is_settled
    assert [run.rows_per_s for run in warming.runs][-2:] == [40_000, 42_000]


def test_a_broker_that_never_settles_is_a_doubt(monkeypatch: pytest.MonkeyPatch, compared: compare.Compared) -> None:
    rates(monkeypatch, *[10_000, 20_000] * limit.WARMING_RUNS_MAX)
    compared.warming = limit.warm_up("nowhere", 1, lambda _line: None)
    assert len(compared.warming.runs) == limit.WARMING_RUNS_MAX
    (doubt,) = compared.doubts()
    assert "young" in doubt
    assert "10,000, 20,000" in doubt


def test_without_the_script_nothing_is_known_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "script", lambda: None)
    warming = limit.warm_up("nowhere", 1, lambda _line: None)
    assert not warming.is_settled
    assert "not measured" in warming.doubt


# --- from outside ------------------------------------------------------------------------------------------------------------------


def test_facts_are_read_by_the_schemas_of_their_tree() -> None:
    schemas = topics.Schemas(ROOT)
    fact = ContinuationCompleted("e1", 7, unit_id="e1.step", item_index=3, attempt=1, outputs=[b"{}"])
    name, fields = schemas.decode(codec.encode(fact))
    assert (name, fields["itemIndex"], fields["executionId"]) == (compare.RESUMED, 3, "e1")
    assert schemas.decode(codec.encode(RunCancelled("e2", 1, "why")))[0] == "RunCancelled"
    with pytest.raises(topics.TopicsFailed, match="fingerprint 0000"):
        schemas.decode(topics.MARKER + bytes(8))


def test_an_item_without_an_end_is_no_sample() -> None:
    assert topics.milliseconds_between({0: 10, 1: 20, 2: 30}, {0: 11, 1: 25, 2: 31}, first=1) == [5.0, 1.0]
    with pytest.raises(topics.TopicsFailed, match="1 of 2 items"):
        topics.milliseconds_between({0: 10, 1: 20}, {0: 11}, first=0)


def test_a_measured_tree_sees_none_of_our_own_settings() -> None:
    ours = {"PYTHONPATH": "/here", "VIRTUAL_ENV": "/venv", "KAWAIT_BOOTSTRAP": "b:1", "KAWAIT_KAFKA_ACKS": "all"}
    found = installed.environment({**ours, "PATH": "/bin"})
    assert found == {"PATH": "/bin", "KAWAIT_KAFKA_ACKS": "all", installed.TOKEN_VARIABLE: "k" * 32}


def worktrees() -> str:
    return subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
def test_a_commit_is_laid_out_and_removed_again() -> None:
    with checkout.sources_of("HEAD") as path:
        assert (path / "kawait.py").is_file() or (path / "kawait").is_dir()
        assert str(path) in worktrees()
    assert not path.exists()
    assert str(path) not in worktrees()
    with pytest.raises(checkout.CheckoutFailed, match="no-such-commit"), checkout.sources_of("no-such-commit"):
        pass


@pytest.mark.broker
def test_one_turn_is_measured_by_the_installed_command_alone(tmp_path: Path, bootstrap: str) -> None:
    place, tree = Place(connection(bootstrap, None, {})), checkout.this_tree()
    reader = topics.Topics(place.connection)
    with installed.running(tree, place, (f"{compare.LIVE_KEY}.window=4",)) as application:
        figures = compare.throughput(application, place, SMALL, tmp_path)
        times_ms = compare.latencies(application, place, tree, SMALL, compare.payments(tmp_path, 20), 20)
        assert reader.offsets(f"{application.name}.")
    assert figures["rows/s"] > 0
    assert figures["core peak MiB"] > 10
    assert figures["offsets/row"] >= 9
    assert len(times_ms) == 18
    assert min(times_ms) > 0
    until_s = time.monotonic() + 20
    while reader.offsets(f"{application.name}."):
        assert time.monotonic() < until_s, "its topics are still there"
    reader.close()
