"""The command line on a real Kafka: processes that start, work, stop and fail clearly."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from connectors.objects.listing import identify, submission_key
from schemas.identity import execution_id
from streams.clock import SystemClock
from streams.demo.run import PIPELINE, SAMPLE
from streams.process.child import Child, end_all
from streams.process.launcher import child_environment

pytestmark = pytest.mark.broker

READY_S = 60.0
END_S = 60.0
"""As long as it may take on a busy machine; a moment on a quiet one."""
NOBODY = "127.0.0.1:1"


class Place:
    """One application on the broker: its own topics, output folder and processes."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.app = f"cli-{secrets.token_hex(4)}"
        self.environ = child_environment({**os.environ, "KAWAIT_TOKEN_K1": "k" * 32, "TMPDIR": str(folder)})
        self.children: list[Child] = []

    def kawait(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "streams", *map(str, arguments)],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    def on_broker(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.kawait(*arguments, "--app", self.app, "--bootstrap", self.bootstrap)

    def start(self, command: str, *more: str, name: str = "") -> Child:
        places = ["--app", self.app, "--bootstrap", self.bootstrap]
        if command == "worker":
            (self.folder / "in").mkdir(exist_ok=True)
            more = (*more, "--admin-port", "off", "--set", f"output.location={self.folder / 'out'}")
            more = (*more, "--set", f"input.location={self.folder / 'in'}")
        log_path = self.folder / f"{name or command}.log"
        child = Child(command, [command, str(PIPELINE), *places, *more], environ=self.environ, log_path=log_path)
        self.children.append(child)
        return child


@pytest.fixture
def place(bootstrap: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(bootstrap, tmp_path)
    yield made
    end_all(made.children)


@pytest.fixture
def running(place: Place) -> Place:
    assert place.on_broker("topics", PIPELINE).returncode == 0
    worker = place.start("worker", "--instance", "w1", "--state-dir", str(place.folder / "state"))
    place.start("provider")
    worker.wait_ready(SystemClock().monotonic_s() + READY_S)
    return place


def wait_for(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.05)


def json_lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def process_is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_day_with_the_command_line(running: Place) -> None:
    (ended,) = json_lines(running.on_broker("submit", PIPELINE, "--input", SAMPLE, "--wait", "--json"))
    execution = ended["executionId"]
    assert ended == {
        "executionId": execution,
        "status": "SUCCEEDED",
        "outputs": [str(running.folder / "out" / "payments_12.csv.out")],
    }
    (again,) = json_lines(running.on_broker("submit", PIPELINE, "--input", SAMPLE, "--wait", "--json"))
    assert again == {**ended, "duplicate": True}
    (status,) = json_lines(running.on_broker("status", execution, "--json"))
    assert status["status"] == "SUCCEEDED"
    facts = json_lines(running.on_broker("trace", execution, "--json"))
    kinds = [fact["fact"] for fact in facts]
    assert kinds[0] == "RunSubmitted"
    assert kinds[-1] == "RunSucceeded"
    assert kinds.count("BoundaryCompletionAdmitted") == 12
    item = json_lines(running.on_broker("trace", f"{execution}.1.11", "--json"))
    assert [fact["itemIndex"] for fact in item] == [11, 11, 11]
    assert running.on_broker("refusals").stdout.startswith("no refused answers")


def test_a_file_in_the_input_folder_is_paid_once_and_moved_away_though_it_comes_again_after_a_kill(
    place: Place,
) -> None:
    assert place.on_broker("topics", PIPELINE).returncode == 0
    done = place.folder / "done"
    says = {"settle": "PT1S", "poll": "PT1S", "after": "move", "done": done, "failed": place.folder / "failed"}
    sets = [text for key, value in says.items() for text in ("--set", f"input.{key}={value}")]
    place.start("provider")
    for number in (1, 2):
        name = f"worker-{number}"
        worker = place.start("worker", "--instance", "w1", "--state-dir", str(place.folder / "state"), *sets, name=name)
        worker.wait_ready(SystemClock().monotonic_s() + READY_S)
        (place.folder / "in" / SAMPLE.name).write_bytes(SAMPLE.read_bytes())
        wait_for(lambda: not any((place.folder / "in").iterdir()), within_s=END_S, what="the file is moved away")
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(END_S)
    assert [path.name for path in done.iterdir()] == [SAMPLE.name]
    there = replace(identify(done / SAMPLE.name), path=str(place.folder / "in" / SAMPLE.name))
    execution = execution_id("default", "csv-payments", submission_key(there))
    kinds = [fact["fact"] for fact in json_lines(place.on_broker("trace", execution, "--json"))]
    assert {kind: kinds.count(kind) for kind in ("RunSubmitted", "InputMoved", "BoundaryInteractionDispatched")} == {
        "RunSubmitted": 1,
        "InputMoved": 1,
        "BoundaryInteractionDispatched": 12,
    }


def test_a_bad_file_fails_with_its_reason_and_is_in_the_dlq(running: Place) -> None:
    bad = running.folder / "bad.csv"
    bad.write_text("ID,Recipient,Amount,Currency\n1,Ann,much,EUR\n")
    done = running.on_broker("submit", PIPELINE, "--input", bad, "--wait")
    assert done.returncode == 1
    assert "bad.csv" in done.stderr
    assert "line 2" in done.stderr
    (letter,) = json_lines(running.on_broker("dlq", "list", "--json"))
    assert letter["executionId"] == done.stdout.splitlines()[0]


def test_a_held_state_directory_is_a_clear_error(running: Place) -> None:
    second = running.on_broker(
        "worker", PIPELINE, "--instance", "w1", "--state-dir", running.folder / "state", "--admin-port", "off"
    )
    assert second.returncode == 1
    assert "is held by process" in second.stderr
    assert "Traceback" not in second.stderr
    running.children[0].check()  # the first one goes on


def test_a_newer_process_with_its_name_ends_the_older_one(running: Place) -> None:
    older = running.children[0]
    newer = running.start("worker", "--instance", "w1", "--state-dir", str(running.folder / "other"), name="newer")
    newer.wait_ready(SystemClock().monotonic_s() + READY_S)
    wait_for(lambda: not process_is_there(older.pid), within_s=END_S, what="the older process ends")
    assert "another process runs under this instance name" in (running.folder / "worker.log").read_text()
    newer.check()


def test_sigterm_ends_worker_and_provider_with_0(running: Place) -> None:
    for child in running.children:
        child.ask_to_end()
    for child in running.children:
        assert child.wait(END_S) == 0


def test_an_auto_instance_that_is_stopped_leaves_no_state_behind(running: Place) -> None:
    """Its name never comes again, so nobody would ever read it; that of a named one stays."""
    state = running.folder / "state"
    worker = running.start("worker", "--instance", "auto", "--state-dir", str(state), name="auto")
    worker.wait_ready(SystemClock().monotonic_s() + READY_S)
    there = {path.name.partition("-")[0] for path in (state / running.app).iterdir()}
    assert there == {"w1", "auto"}
    worker.ask_to_end()
    assert worker.wait(END_S) == 0
    assert [path.name for path in (state / running.app).iterdir()] == ["w1"]


def test_a_worker_without_topics_says_how_to_make_them(place: Place) -> None:
    done = place.on_broker("worker", PIPELINE, "--admin-port", "off")
    assert done.returncode == 1
    assert f"missing topics: {place.app}.commands and 14 more; create them with `kawait topics" in done.stderr


def test_a_submission_gives_up_after_its_timeout(place: Place) -> None:
    done = place.kawait("submit", PIPELINE, "--input", SAMPLE, "--timeout", 2, "--bootstrap", NOBODY)
    assert done.returncode == 1
    assert f"{NOBODY} did not store the record in 2 s" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_waits_for_a_broker_that_is_away(place: Place) -> None:
    place.bootstrap = NOBODY
    child = place.start("worker", "--state-dir", str(place.folder / "state"))
    log = place.folder / "worker.log"
    wait_for(lambda: "waiting for the broker" in log.read_text(), within_s=END_S, what="it says that it waits")
    assert NOBODY in log.read_text()
    child.ask_to_end()
    assert child.wait(END_S) == 0


# --- the demo -------------------------------------------------------------------------------------------------------------------------


def app_topics(bootstrap: str, prefix: str) -> set[str]:
    found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=10).topics
    return {name for name in found if name.startswith(prefix)}


def test_the_demo_runs_on_kafka_and_leaves_nothing_there(place: Place) -> None:
    before = app_topics(place.bootstrap, "csv-payments-")
    done = place.kawait("demo", "--rows", 500, "--output", "out", "--json", "--bootstrap", place.bootstrap)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["rows"], found["failed"], found["broker"], found["live"]) == (500, 0, "kafka", True)
    memory = json.loads(place.kawait("demo", "--rows", 500, "--output", "out", "--json").stdout.splitlines()[-1])
    assert (memory["approved"], memory["rejected"]) == (found["approved"], found["rejected"])
    wait_for(
        lambda: app_topics(place.bootstrap, "csv-payments-") <= before, within_s=END_S, what="the topics are removed"
    )


def test_the_two_paths_and_the_two_brokers_write_the_same_bytes(place: Place) -> None:
    written = []
    for more in (["--bootstrap", place.bootstrap, "--no-live"], ["--bootstrap", place.bootstrap], []):
        done = place.kawait("demo", "--output", "out", "--json", *more)
        written.append(Path(json.loads(done.stdout.splitlines()[-1])["outputs"][0]).read_bytes())
    assert written[0] == written[1] == written[2]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_demos_processes_end_with_it(place: Place, how: signal.Signals) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-P", "-m", "streams", "demo", "--rows", "200000", "--bootstrap", place.bootstrap],
        env=place.environ,
        cwd=place.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(children_of(demo.pid)) == 3, within_s=END_S, what="worker, ingress and provider run")
        pids = children_of(demo.pid)
        demo.send_signal(how)
        demo.wait(40)
        wait_for(lambda: not any(map(process_is_there, pids)), within_s=10, what="its processes end")
    finally:
        demo.kill()
        demo.wait()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
