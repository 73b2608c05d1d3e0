"""The tour on Kafka, as the README prints it: each part in a terminal of its own, a worker killed on the way."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.docs.pages import PRELUDE, README, ROOT, blocks, left_for_git, newcomers_environment

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(400)]

WAIT_S = 120.0
CLOSE_S = 30.0
REQUESTS_BEFORE_THE_KILL = 1_000
PROJECT = "topologies/csv_payments"


def script(terminal: str | None) -> str:
    """What one terminal types, after what each of them does."""
    shown = [block for block in blocks(README) if block.words[:1] == ("kafka",)]
    (every,) = (block.text for block in shown if "every" in block.words)
    own = [block.text for block in shown if "every" not in block.words and block.value("terminal") == terminal]
    assert own, terminal
    return every + "".join(own)


class Terminal:
    """A terminal that a person has open: its output, Ctrl-C, and kill -9."""

    def __init__(self, name: str, text: str, folder: Path) -> None:
        self._said = folder.with_name(f"{name}-{secrets.token_hex(2)}.log")
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                ["bash", "-c", PRELUDE + text],
                cwd=folder,
                env=newcomers_environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WAIT_S
        while not is_so():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until_s, self.said
            time.sleep(0.05)

    def ends_well(self) -> str:
        assert self.process.wait(WAIT_S) == 0, self.said
        return self.said

    def kill(self) -> None:
        """`kill -9` of everything in it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Ctrl-C; what does not heed it is killed."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_S)
        self.kill()


class Tour:
    """A checkout with nothing but the demo in it, under an app name of its own."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self.app = f"tour-{secrets.token_hex(4)}"
        self._bootstrap = bootstrap
        self._open: list[Terminal] = []
        shutil.copytree(ROOT / PROJECT, folder / PROJECT, ignore=shutil.ignore_patterns("__pycache__"))
        self._before = self._files()
        pipeline = folder / PROJECT / "pipeline.yaml"
        text = pipeline.read_text()
        assert "\napp: csv-payments " in text
        pipeline.write_text(text.replace("\napp: csv-payments ", f"\napp: {self.app} "))

    def _files(self) -> set[str]:
        return set(left_for_git(self.folder))

    def left(self) -> set[str]:
        """What the tour wrote and git would show."""
        return self._files() - self._before

    def open(self, terminal: str | None) -> Terminal:
        text = script(terminal).replace("127.0.0.1:PORT", self._bootstrap)
        self._open.append(Terminal(terminal or "you", text, self.folder))
        return self._open[-1]

    def worker(self) -> Terminal:
        """One that is ready."""
        worker = self.open("worker")
        worker.wait_for(lambda: f"ready worker w1 of {self.app}" in worker.said)
        return worker

    def requests(self) -> int:
        """Records on the request topic, with the markers of their transactions."""
        topic = f"{self.app}.payment.requests"
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self.app, "enable.auto.commit": False})
        try:
            partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
            ends = (reader.get_watermark_offsets(TopicPartition(topic, number), timeout=10) for number in partitions)
            return sum(end for _, end in ends)
        except KafkaException:
            return 0  # a broker at work may be slow to say
        finally:
            reader.close()

    def end(self) -> None:
        """Ctrl-C in each terminal, and nothing is left on the broker."""
        for terminal in reversed(self._open):
            terminal.close()
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        own = [name for name in admin.list_topics(timeout=30).topics if name.startswith(f"{self.app}.")]
        for deleted in admin.delete_topics(own).values() if own else ():
            deleted.result(30)


@pytest.fixture
def tour(tmp_path: Path, bootstrap: str) -> Iterator[Tour]:
    taken = Tour(tmp_path / "checkout", bootstrap)
    yield taken
    taken.end()


def test_the_tour_goes_as_the_readme_says(tour: Tour) -> None:
    worker = tour.worker()
    provider = tour.open("provider")
    provider.wait_for(lambda: "provider answers" in provider.said)
    you = tour.open(None)
    you.wait_for((tour.folder / "out/large").exists)
    you.wait_for(lambda: tour.requests() > REQUESTS_BEFORE_THE_KILL)
    worker.kill()
    tour.worker()
    said = you.ends_well()
    assert "payments_12.csv.out" in said
    assert "BoundaryCompletionAdmitted" in said
    assert "bad-token" in said
    assert "no payment was sent" in said
    assert said.splitlines()[-1] == "20000"
    assert tour.left() == set()
