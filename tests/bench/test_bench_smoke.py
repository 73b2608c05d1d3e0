"""The bench works: tiny sizes, in memory only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import backlog, burst, instructions, journey, journey_trace, latency, limit, plot, report, stages, throughput
from bench.budget import Budget, TopicShare
from bench.idle import Idle
from bench.parcels import PARTITIONS, SILENT, Asked, write
from bench.place import ROOT, machine
from bench.plan import FULL, QUICK
from bench.restore import Restored
from bench.results import Results
from streams.roles.core.task import CoreTask
from topologies.reading.loading import load_pipeline

CASE = throughput.Case(group="rows", rows=1_000)


def measured(case: throughput.Case = CASE, rate: float = 2_500.0) -> throughput.Measured:
    parts = {"core": 100.0, "ingress": 20.0, "provider": 20.0, "broker": 80.0}
    return throughput.Measured(case=case, seconds=1.0, rows_per_s=rate, cpu_us_per_row=parts, peak_mib={"core": 90.0})


def moments(item: int) -> dict[str, float]:
    """An item whose hops take 1, 2, 3, ... ms."""
    at, found = 1000.0 * item, {}
    for number, (_, start, end) in enumerate(latency.HOPS, 1):
        found[start] = at
        at += number
        found[end] = at
    return found


def burst_of(deadlines: int) -> tuple[list[Asked], list[int], dict[str, int], int, float]:
    """Deadlines from 20.000 s on that ring 1 s later, beside a parcel each 100 ms that takes 10 ms, and 30 ms while they ring."""
    silent = [Asked(SILENT, "large", item, 1_000, 20_000 + item) for item in range(deadlines)]
    rang = [21_000 + 100 * item for item in range(deadlines)]
    steady = [Asked(f"steady-{number}", f"e{number}", 0, 5_000 + 100 * number, 90_000) for number in range(200)]
    resumed = {one.execution_id: one.at_ms + (30 if 20_990 <= one.at_ms <= 21_300 else 10) for one in steady}
    return [*silent, *steady], rang, resumed, deadlines, 10.0


def backlog_of(*, late_ms: int) -> backlog.Backlog:
    """A deadline at 10 s whose gate opens at 14 s, in a run of 20 s in which partition 0 writes all the time and the others half as much."""
    topics = [(f"app.{name}", number) for name in ("answered", *backlog.READ) for number in range(PARTITIONS)]
    samples = []
    for second in range(21):
        ends = {**dict.fromkeys(topics, 100 * second)}
        ends |= {("app.facts", number): second if number == 0 else second // 2 for number in range(PARTITIONS)}
        samples.append(backlog.Sample(1_000 * second, ends, dict.fromkeys(topics, 100 * max(second - 1, 0))))
    rang = {"one": 14_000 + late_ms}
    return backlog.summary("app", samples, {"one": 10_000}, rang, {"one": 3}, backlog.Sent(100, 5.0))


@pytest.fixture
def results() -> Results:
    """A run of every part, with made-up figures."""
    found = Results(plan="made-up", machine=machine())
    for when, rate in (("before", 10_000.0), ("after", 12_000.0)):
        found.limits[when] = limit.Limit(rows=100, rows_per_s=rate, wall_s=1.0, cpu_s={"core": 1.0})
    found.throughput.append(measured())
    found.latency.append(latency.summary(1, {item: moments(item) for item in range(10)}, 10))
    share = TopicShare(topic="facts", records=3.0, markers=0.1, bytes=500.0, disk_bytes=None)
    found.budgets.append(Budget(case=CASE, topics=[share, share]))
    found.restores.append(
        Restored(
            state="open",
            rows=50_000,
            changelog_records=1,
            restore_s=2.0,
            ready_lost_s=3.0,
            ready_kept_s=1.0,
            peak_mib=1.0,
        )
    )
    found.burst = burst.summary(*burst_of(4))
    found.backlog = backlog_of(late_ms=500)
    found.idle.append(Idle(load="nothing", parked=0, seconds=1.0, percent={"core": 0.5}))
    return found


def test_a_run_in_memory_is_measured(tmp_path: Path) -> None:
    case = throughput.Case(group="memory", rows=12, broker="memory")
    found = throughput.run(case, None, tmp_path)
    assert found.rows_per_s > 0
    assert found.cpu_us_per_row["all"] > 0
    assert found.peak_mib["all"] > 10
    assert found.complaints == []


@pytest.mark.parametrize("live", [True, False])
def test_a_profile_covers_the_whole_run(tmp_path: Path, *, live: bool) -> None:
    original = CoreTask.decide
    found = stages.measure(30, tmp_path, live=live)
    assert CoreTask.decide is original
    assert sum(stage.us_per_row for stage in found.stages) == pytest.approx(found.total_us_per_row)
    calls = {stage.name: stage.calls for stage in found.stages}
    assert calls["core: decide AnswerArrived"] == 30
    assert calls["pool: publish the output"] == 1


def test_time_within_a_stage_counts_once() -> None:
    now_s = iter([0.0, 1.0, 4.0, 10.0])
    watch = stages.Stopwatch(lambda: next(now_s))
    inner = watch.timed(lambda: None, "inner")
    watch.timed(inner, "outer")()
    assert watch.self_s == {"outer": 7.0, "inner": 3.0}


def test_a_gate_hands_through_results_and_errors() -> None:
    def fail() -> None:
        raise KeyError("k")

    gate = instructions.Gate()
    assert gate.address
    # One within the other, as a stage that runs inside another.
    assert gate.through(lambda value: gate.through(lambda: value + 1)())(1) == 2
    with pytest.raises(KeyError, match="k"):
        gate.through(fail)()


def test_a_profile_of_callgrind_is_read_by_address() -> None:
    call = "cfn=({0}) {1}\ncalls=1 0\n* {2}\n"
    address = "0x00000000000000ff"
    called = [(2, address, 100), (3, "other", 7), (4, f"{address}'2", 30)]
    text = "fn=(1) main\n0 5\n" + "".join(call.format(*each) for each in called) + "totals: 500\n"
    small = instructions.read_callgrind(text, {"stage": 0xFF})
    assert small == {"total": 500, "stage": 130}
    large = {"total": 2_500, "stage": 1_130}
    found = instructions.difference(small, large, (10, 20))
    assert found.per_row == 200
    assert found.stages == {"stage": 100, "loop: the rest": 100}


def test_hops_add_up_to_the_whole() -> None:
    found = latency.summary(1, {item: moments(item) for item in range(20)}, 20)
    assert found.samples == 18
    assert [hop.p50_ms for hop in found.hops] == list(range(1, len(latency.HOPS) + 1))
    assert sum(hop.mean_ms for hop in found.hops) == pytest.approx(found.committed.mean_ms)
    assert found.resume.mean_ms == found.committed.mean_ms - len(latency.HOPS)


def test_an_item_that_was_not_followed_to_its_end_is_no_sample() -> None:
    with pytest.raises(throughput.RunFailed, match="1 of 2 payments"):
        latency.summary(16, {0: moments(0), 1: {"dispatched": 1.0}}, 2)


def test_a_burst_compares_what_was_open_while_deadlines_rang_with_what_was_before() -> None:
    found = burst.summary(*burst_of(4))
    assert (found.rang, found.rang_s, found.late_s) == (4, 0.3, 1.297)
    assert (found.quiet.p99_ms, found.burst.p99_ms, found.ratio) == (10.0, 30.0, 3.0)
    assert found.burst_samples == 4


def test_a_burst_of_which_some_never_rang_is_no_figure() -> None:
    asked, rang, resumed, deadlines, per_s = burst_of(4)
    with pytest.raises(throughput.RunFailed, match="3 of 4 deadlines"):
        burst.summary(asked, rang[:3], resumed, deadlines, per_s)


def test_what_never_came_back_beside_the_deadlines_is_no_figure() -> None:
    asked, rang, resumed, deadlines, per_s = burst_of(4)
    del resumed["e150"]
    with pytest.raises(throughput.RunFailed, match="1 parcels"):
        burst.summary(asked, rang, resumed, deadlines, per_s)


def test_lateness_counts_from_the_moment_that_the_gate_opened() -> None:
    # A look comes by 12 s. Ingress has read by 13 s what had come by then, and the core by 14 s what had come by 13 s.
    found = backlog_of(late_ms=500)
    assert (found.gate_s, found.late_s) == (4.0, 0.5)
    assert (found.timers, found.rang, found.waiting) == (1, 1, 100 * len(backlog.READ) * PARTITIONS)
    assert (found.slowest, found.still_s) == (10, 2.0)


def test_the_parcels_pipeline_is_valid(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path), environ={}, overrides=("steps.ask.timeout=PT3S",))
    assert [step.timeout_ms for step in pipeline.await_steps] == [3_000]
    assert pipeline.partitions == PARTITIONS


def test_ratios_are_to_the_mean_of_both_limits(results: Results) -> None:
    assert results.ratio(results.throughput[0]) == pytest.approx(2_500 / 11_000)
    memory = measured(throughput.Case(group="memory", rows=10, broker="memory"))
    assert results.ratio(memory) is None


def test_doubts_say_when_the_machine_was_not_quiet(results: Results) -> None:
    assert any("not quiet" in doubt for doubt in results.doubts())
    del results.limits["after"]
    assert results.doubts() == []


def test_a_report_is_written(results: Results, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    report.write_readme(results, readme)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert "0.227" in text  # 2,500 of 11,000
    assert "| live: all | 6.000 |" in text
    results.write(tmp_path / "bench.json")
    told = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert told["throughput"][0]["ratio"] == pytest.approx(2_500 / 11_000)
    assert plot.draw(results, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 1_000
    console = Console(width=200, record=True, quiet=True)
    report.show(results, console)


def test_the_readme_has_its_place() -> None:
    text = report.README.read_text(encoding="utf-8")
    assert text.count(report.BEGIN) == text.count(report.END) == 1


def test_each_plan_measures_what_is_promised() -> None:
    cases = FULL.cases()
    assert {(case.rows, case.live) for case in cases if case.group == "rows"} == {
        (rows, live) for rows in (1_000, 10_000, 100_000) for live in (True, False)
    }
    assert {case.window for case in cases if case.group == "windows"} == {128, 1_024, 8_192, 16_384}
    assert {case.workers for case in cases if case.group == "workers"} == {1, 2}
    assert len({case.name for case in cases}) == len(cases)
    assert sum(case.rows for case in QUICK.cases()) < sum(case.rows for case in cases) / 5


def test_a_journey_counts_changes_of_file_on_both_paths() -> None:
    found = journey.measure(ROOT)
    for path in journey.PATHS:
        counted = found.paths[path]
        assert 0 < found.changes(path) < counted["answer"]["calls"] < counted["alone"]["calls"]
        # The list of stops is the same journey: what it leaves out is what full batches call once in a while.
        assert len(counted["stops"]) == pytest.approx(counted["answer"]["calls"], rel=0.05)
        files = {file for file, _ in counted["stops"]}
        assert "topologies/csv_payments/steps.py" in files
        assert not [file for file in files if journey_trace.LEFT_OUT.fullmatch(file)]
    assert found.changes("suspending") > found.changes("live")
    assert "topologies/csv_payments/steps.py: approved" in journey.stops_text(found, "live")


def test_a_journey_of_something_else_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(journey.JourneyFailed, match="kawait"):
        journey.measure(tmp_path)


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("/tree/streams/engine/loop.py", "streams/engine/loop.py"),
        ("/tree/src/kawait/streams/core.py", "streams/core.py"),
        ("/tree/streams/log/memory/log.py", ""),
        ("/tree/streams/memory_log.py", ""),
        ("/tree/streams/testing/inline_pool.py", ""),
        ("/tree/tests/state/test_records.py", ""),
        ("/tree/.venv/lib/streams/core.py", ""),
        ("/elsewhere/streams/core.py", ""),
    ],
)
def test_only_our_own_folders_count(path: str, file: str) -> None:
    assert journey_trace.counted_file(path, "/tree/") == file
