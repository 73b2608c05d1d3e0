"""The author's code in a process of its own: it gives what it gives here, and its end costs no neighbour anything (DESIGN 6 'Bounds')."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schemas.errors import StepError
from schemas.facts import BoundaryCompletionAdmitted, ContinuationAttemptFailed, ContinuationCompleted
from streams.author.calls import Author, Items, StreamRequest, SuffixResult
from streams.author.errors import StepProcessEnded, describe_error, failed_step_of
from streams.author.local import LocalAuthor
from streams.author.step_process import StepProcess
from streams.testing.driver import TopologyTestDriver
from topologies.pipeline.shapes import Misshapen, Shape, Unshaped
from topologies.reading.choice import PipelineChoice

PIPELINE = Path(__file__).parent / "project" / "pipeline.yaml"
AWAIT = 1
WAIT_S = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def in_background(call: Callable[[], object]) -> threading.Thread:
    """A call that goes on until the process is ended."""

    def run() -> None:
        with contextlib.suppress(StepProcessEnded):
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def is_running(pid: int) -> bool:
    """A process that is a zombie has ended; its parent has only not asked yet."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.fixture
def process() -> Iterator[StepProcess]:
    started = StepProcess(PipelineChoice(path=PIPELINE))
    yield started
    pid = started.pid
    started.close()
    assert not is_running(pid)


def local() -> Author:
    return LocalAuthor(PipelineChoice(path=PIPELINE).load({}))


def basket(*skus: str) -> StreamRequest:
    return StreamRequest("e1", 0, AWAIT, [json.dumps({"lines": skus}).encode()])


def price(sku: str, payload: bytes = b'{"price": "1.50"}') -> Unshaped:
    return Unshaped(AWAIT, payload, json.dumps({"sku": sku}).encode(), "e1.1.0", "", 0)


def offer(sku: str) -> bytes:
    return json.dumps({"sku": sku, "price": "1.50"}).encode()


def projected(author: Author, *answers: Unshaped) -> list[Shape]:
    shapes: list[Shape] = []
    author.project(answers, shapes, lambda: None)
    return shapes


def ran(author: Author, *completions: bytes) -> list[list[bytes] | tuple[str, str, bool, str | None]]:
    outcomes: list[SuffixResult] = []
    author.run_suffixes(AWAIT, completions, outcomes, lambda: None)
    return [
        outcome if isinstance(outcome, list) else (*describe_error(outcome), failed_step_of(outcome))
        for outcome in outcomes
    ]


def pulled(items: Items) -> list[tuple[list[str], bool]]:
    found = []
    while True:
        some, has_ended = items.pull(2)
        found.append(([item.idempotency_key for item in some], has_ended))
        if has_ended:
            return found


def raised(call: Callable[[], object]) -> tuple[str, str, bool]:
    with pytest.raises(StepError) as caught:
        call()
    return describe_error(caught.value)


def test_it_gives_what_a_local_call_gives(process: StepProcess) -> None:
    here = local()
    answers = [price("pear"), price("project:raise"), price("fig", b"{}"), price("fig", b"not json")]
    assert projected(process, *answers) == projected(here, *answers)
    assert [type(shape) for shape in projected(process, *answers)][1:] == [Misshapen] * 3
    completions = [offer("pear"), offer("receipt:raise"), offer("receipt:refuse"), b"{}", offer("fig")]
    assert ran(process, *completions) == ran(here, *completions)
    assert ran(process, offer("receipt:refuse")) == [
        ("STEP_FAILED", "step receipt: Refused: receipt:refuse is refused", False, "receipt")
    ]
    asked = basket("pear", "fig", "plum")
    assert pulled(process.open_items(asked)) == pulled(here.open_items(asked))
    assert len(pulled(process.open_items(asked))) == 2
    broken = basket("pear", "split:raise")
    assert raised(lambda: process.open_items(broken).pull(9)) == raised(lambda: here.open_items(broken).pull(9))
    segment = (AWAIT + 1, AWAIT + 2, [offer("pear")])
    assert process.run_segment(*segment, many=False) == here.run_segment(*segment, many=False)


def test_equal_items_of_a_stream_are_counted_anew_whenever_it_is_opened() -> None:
    """Each stream for itself, and from the start again in a step process that was started again."""
    process = StepProcess(PipelineChoice(path=PIPELINE, overrides=("steps.ask.idempotencyKeyFields=[sku]",)))
    asked = basket("pear", "fig", "pear", "pear")
    keys = [f"ask:sku={end}" for end in ("pear", "fig", "pear:n=2", "pear:n=3")]
    try:
        half_read = process.open_items(asked)
        assert [item.idempotency_key for item in half_read.pull(3)[0]] == keys[:3]
        assert [key for some, _ in pulled(process.open_items(asked)) for key in some] == keys
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: not is_running(process.pid))
        with pytest.raises(StepProcessEnded):
            half_read.pull(1)
        assert [key for some, _ in pulled(process.open_items(asked)) for key in some] == keys
    finally:
        process.close()


def test_a_stream_that_nobody_pulls_any_more_is_forgotten(process: StepProcess) -> None:
    """Told with the next call; what it holds in the step process is freed."""
    stream = process.open_items(basket("pear", "fig"))
    stream.pull(1)
    stream.close()
    ran(process, offer("pear"))
    assert raised(lambda: stream.pull(1))[0] == "STEP_PROCESS_ENDED"


def test_calls_run_side_by_side(process: StepProcess) -> None:
    """A function that waits for ever keeps its own thread only."""
    in_background(lambda: ran(process, offer("receipt:hang")))
    assert ran(process, offer("pear")) == ran(local(), offer("pear"))


def test_results_come_while_the_call_goes_on(process: StepProcess) -> None:
    """Who overstays is the first without a result: what is done before it must be known, and its limit counts from its own start."""
    outcomes: list[SuffixResult] = []
    starts: list[int] = []
    completions = [offer("pear"), offer("fig"), offer("receipt:hang")]
    call = in_background(
        lambda: process.run_suffixes(AWAIT, completions, outcomes, lambda: starts.append(len(outcomes)))
    )
    wait_for(lambda: len(outcomes) == 2 and starts[-1:] == [2])
    assert call.is_alive()


def test_the_next_call_after_its_end_finds_a_new_process(process: StepProcess) -> None:
    stream = process.open_items(basket("pear", "fig", "plum"))
    stream.pull(1)
    first = process.pid
    code, message, retryable = raised(
        lambda: process.run_segment(AWAIT + 1, AWAIT + 2, [offer("receipt:die")], many=False)
    )
    assert (code, retryable) == ("STEP_PROCESS_ENDED", True)
    assert "by signal 9" in message
    assert ran(process, offer("pear")) == ran(local(), offer("pear"))
    assert process.pid != first
    assert raised(lambda: stream.pull(1))[0] == "STEP_PROCESS_ENDED"


def test_a_pipeline_that_cannot_be_loaded_is_said_at_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = StepProcess(PipelineChoice(path=tmp_path / "none.yaml"))
    with pytest.raises(Exception, match="did not start"):
        started.wait_ready()
    started.close()
    assert "none.yaml" in capfd.readouterr().err


def test_signals_are_for_the_worker(process: StepProcess) -> None:
    """Ctrl-C reaches the whole process group; calls under way must come to their end."""
    process.wait_ready()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process.pid, number)
    assert ran(process, offer("pear")) == ran(local(), offer("pear"))
    first = process.pid
    assert ran(process, offer("fig"))
    assert process.pid == first


def test_it_ends_with_its_worker(tmp_path: Path) -> None:
    """kill -9 of the worker, while the author's code hangs."""
    program = f"""
        import threading, time
        from pathlib import Path
        from topologies.reading.choice import PipelineChoice
        from streams.author.step_process import StepProcess
        process = StepProcess(PipelineChoice(path=Path({str(PIPELINE)!r})))
        process.wait_ready()
        completion = b'{{"sku": "receipt:hang", "price": "1"}}'
        threading.Thread(target=lambda: process.run_suffixes({AWAIT}, [completion], [], lambda: None), daemon=True).start()
        print(process.pid, flush=True)
        time.sleep(600)
    """
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        assert is_running(pid)
    finally:
        worker.kill()
        worker.communicate()
    wait_for(lambda: not is_running(pid))


# --- a whole application ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["live", "no-live"])
def driver(
    request: pytest.FixtureRequest, process: StepProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TopologyTestDriver]:
    monkeypatch.setattr("streams.worker.assembly.LocalAuthor", lambda _pipeline: process)
    sets = () if request.param == "live" else ("steps.ask.await.live=false",)
    made = TopologyTestDriver(PIPELINE, answer=lambda _request: {"price": "1.50"}, overrides=sets)
    yield made
    made.close()


def test_an_application_on_it(driver: TopologyTestDriver) -> None:
    execution = driver.submit({"lines": ["pear", "fig", "plum"]})
    driver.run()
    assert driver.status(execution) == "SUCCEEDED"
    assert [each["sku"] for each in driver.result(execution)] == ["pear", "fig", "plum"]


def test_a_projector_that_ends_it_costs_its_own_answer_only(driver: TopologyTestDriver) -> None:
    """As one that overstays: the answer is refused, its neighbours are admitted."""
    lines = ["pear", "fig", "project:die", "plum", "quince"]
    execution = driver.submit({"lines": lines})
    driver.run()
    refused = driver.refusals()
    assert [(refusal.reason, refusal.interaction_id) for refusal in refused] == [("wrong-shape", f"{execution}.1.2")]
    admitted = [fact.item_index for fact in driver.facts(execution) if isinstance(fact, BoundaryCompletionAdmitted)]
    assert set(admitted) == {0, 1, 3, 4}


def test_a_suffix_that_ends_it_is_tried_again_and_then_fails_its_execution(driver: TopologyTestDriver) -> None:
    """Its attempts are counted; the neighbours' outputs are stored once each."""
    lines = ["pear", "fig", "receipt:die", "plum", "quince"]
    execution = driver.submit({"lines": lines})
    driver.run()
    driver.advance(1_000)
    driver.run()
    assert driver.status(execution) == "FAILED"
    (letter,) = driver.dead_letters()
    assert "STEP_PROCESS_ENDED" in letter.detail
    facts = driver.facts(execution)
    failed = [(fact.item_index, fact.attempt) for fact in facts if isinstance(fact, ContinuationAttemptFailed)]
    assert failed == [(2, 1), (2, 2)]
    done = [fact.item_index for fact in facts if isinstance(fact, ContinuationCompleted)]
    assert sorted(done) == [0, 1, 3, 4]


def test_a_source_that_ends_it_is_tried_again_and_then_fails_its_execution(driver: TopologyTestDriver) -> None:
    execution = driver.submit({"lines": ["pear", "split:die"]})
    driver.run()
    driver.advance(1_000)
    driver.run()
    assert driver.status(execution) == "FAILED"
    assert driver.dead_letters()[0].reason == "STEP_PROCESS_ENDED"
