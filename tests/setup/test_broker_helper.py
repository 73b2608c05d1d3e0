"""The throw-away broker: it comes up, keeps its data over a restart, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from streams.broker import jars as kafka_jars
from streams.broker import node as broker
from streams.broker.jars import BrokerError, require_java, require_maven, resolve_kafka
from streams.broker.node import DIRECTORY_PREFIX, RECORD_BYTES_MAX, ThrowawayBroker, running_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]


def wait_for(condition: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


# --- without a broker ----------------------------------------------------------------------------------------------


def test_a_broker_that_is_already_there_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAWAIT_BOOTSTRAP", "kafka.example:9092")
    with running_broker() as bootstrap:
        assert bootstrap == "kafka.example:9092"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no version here", 0),
    ],
)
def test_the_java_version_is_read_from_what_java_says(tmp_path: Path, said: str, version: int) -> None:
    java = script(tmp_path / "java", f"echo '{said}' >&2")
    assert kafka_jars._java_version(str(java)) == version


def test_a_java_that_cannot_run_counts_as_none(tmp_path: Path) -> None:
    assert kafka_jars._java_version(str(tmp_path / "absent")) == 0


def test_missing_tools_are_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kafka_jars, "_find_java", lambda: None)
    monkeypatch.setattr(kafka_jars, "_can_install", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerError, match=r"Java 17 or newer .* openjdk-17-jre-headless.*KAWAIT_BOOTSTRAP"):
        require_java()
    with pytest.raises(BrokerError, match=r"apt-get install maven.*KAWAIT_BOOTSTRAP"):
        require_maven()


def test_root_on_debian_gets_the_missing_java(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    found = iter([None, "/opt/java"])
    monkeypatch.setattr(kafka_jars, "_find_java", lambda: next(found))
    monkeypatch.setattr(kafka_jars, "_can_install", lambda: True)
    monkeypatch.setattr(kafka_jars, "_apt_install", lambda *packages: asked.append(packages))
    assert require_java() == "/opt/java"
    assert asked[0][0] == "openjdk-17-jre-headless"


def test_the_next_package_is_tried_when_a_release_has_no_java_17(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    script(tmp_path / "apt-get", f'echo "$@" >> {log}\ncase "$*" in *first*) exit 100;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    kafka_jars._apt_install("first", "second")
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["update", "first", "second"]


RESOLVE = "from streams.broker.jars import resolve_kafka; print(*(jar.name for jar in resolve_kafka()))"


def fake_maven(folder: Path, body: str) -> dict[str, str]:
    """Put an ``mvn`` first on PATH; return the environment. It notes each call in ``calls``; ``$out`` is where jars go."""
    out = 'for a in "$@"; do case "$a" in -DoutputDirectory=*) out=${a#*=};; esac; done'
    script(folder / "mvn", f"echo call >> {folder}/calls\n{out}\n{body}")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(folder / "cache")}


def test_two_processes_resolve_the_jars_once(tmp_path: Path) -> None:
    environment = fake_maven(tmp_path, 'sleep 0.3; mkdir -p "$out"; touch "$out/kafka_2.13.jar" "$out/a.jar"')
    both = [
        subprocess.Popen([sys.executable, "-c", RESOLVE], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].split() for process in both] == [["a.jar", "kafka_2.13.jar"]] * 2
    assert (tmp_path / "calls").read_text() == "call\n"


def test_a_failed_fetch_says_what_maven_said_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake_maven(tmp_path, 'echo "no route to anywhere"; exit 1').items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BrokerError, match=r"(?s)could not fetch Apache Kafka.*no route to anywhere"):
        resolve_kafka()
    fake_maven(tmp_path, 'mkdir -p "$out"; touch "$out/kafka_2.13.jar"')
    assert [jar.name for jar in resolve_kafka()] == ["kafka_2.13.jar"]


def test_directories_of_killed_owners_are_swept_and_held_ones_stay(tmp_path: Path) -> None:
    for name in ("abandoned", "held"):
        (tmp_path / f"{DIRECTORY_PREFIX}{name}").mkdir()
    (tmp_path / f"{DIRECTORY_PREFIX}abandoned" / "owner.lock").touch()
    held = ThrowawayBroker(directory=tmp_path / f"{DIRECTORY_PREFIX}held")
    held._claim_directory()
    broker._sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{DIRECTORY_PREFIX}held"]
    with pytest.raises(BrokerError, match="another broker uses"):
        ThrowawayBroker(directory=tmp_path / f"{DIRECTORY_PREFIX}held").start()
    held.stop()


def test_ports_are_never_handed_out_twice() -> None:
    ports = [broker._free_port() for _ in range(20)]
    assert len(set(ports)) == len(ports)


def test_what_was_never_started_says_so() -> None:
    fresh = ThrowawayBroker()
    for ask in (lambda: fresh.bootstrap, lambda: fresh.log_path, fresh.restart):
        with pytest.raises(BrokerError, match="never started"):
            ask()
    assert fresh.pid is None
    fresh.stop()


# --- with one ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[ThrowawayBroker]:
    with ThrowawayBroker() as running:
        yield running


def new_topic(bootstrap: str, name: str) -> str:
    settings = {"max.message.bytes": str(RECORD_BYTES_MAX)}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, num_partitions=1, config=settings)]).values():
        future.result()
    return name


def write(bootstrap: str, topic: str, *values: bytes, commit: bool = True) -> None:
    """Write records in one transaction."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{topic}-writer",
            "message.max.bytes": RECORD_BYTES_MAX,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush()
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Read so many committed records through a consumer group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []

    def more() -> bool:
        message: Message | None = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
        return len(values) >= count

    wait_for(more, within_s=60, what=f"{count} records in {topic}")
    consumer.close()
    return values


@pytest.mark.broker
def test_committed_records_are_read_and_aborted_ones_are_not(node: ThrowawayBroker) -> None:
    topic = new_topic(node.bootstrap, "transactions")
    write(node.bootstrap, topic, b"one", b"two")
    write(node.bootstrap, topic, b"never", commit=False)
    write(node.bootstrap, topic, b"three")
    assert read(node.bootstrap, topic, 3) == [b"one", b"two", b"three"]


@pytest.mark.broker
def test_a_record_of_almost_16_mib_passes(node: ThrowawayBroker) -> None:
    topic = new_topic(node.bootstrap, "large")
    large = b"x" * (RECORD_BYTES_MAX - 1024)
    write(node.bootstrap, topic, large)
    assert read(node.bootstrap, topic, 1) == [large]


@pytest.mark.broker
def test_a_missing_topic_is_not_made_up(node: ThrowawayBroker) -> None:
    AdminClient({"bootstrap.servers": node.bootstrap}).list_topics("made-up", timeout=10)
    assert "made-up" not in AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=10).topics


@pytest.mark.broker
def test_after_kill_and_restart_address_and_data_are_the_same(node: ThrowawayBroker) -> None:
    topic = new_topic(node.bootstrap, "kept")
    write(node.bootstrap, topic, b"before")
    address, first_pid = node.bootstrap, node.pid
    assert first_pid is not None
    node.kill()
    assert not running(first_pid)
    with pytest.raises(BrokerError, match="not running"):
        node.check()
    assert node.restart() == address
    node.check()
    write(address, topic, b"after")
    assert read(address, topic, 2) == [b"before", b"after"]


@pytest.mark.broker
def test_a_node_that_does_not_come_up_is_explained_by_its_log() -> None:
    wrong = ThrowawayBroker(properties={"num.io.threads": "0"})
    with pytest.raises(BrokerError, match=r"(?s)It said:.*num\.io\.threads"):
        wrong.start()
    assert wrong.pid is None


def running(pid: int) -> bool:
    """Tell whether a process runs; a zombie that nobody reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.broker
def test_the_node_dies_with_a_killed_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    code = "from streams.broker.node import ThrowawayBroker; b = ThrowawayBroker(); b.start(); print(b.pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert running(pid)
        parent.kill()
        wait_for(lambda: not running(pid), within_s=60, what="the end of the Java process")


@pytest.mark.broker
def test_in_the_foreground_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "streams.broker"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as foreground:
        assert foreground.stdout is not None
        assert foreground.stdout.readline().startswith("bootstrap=127.0.0.1:")
        assert list(tmp_path.glob(DIRECTORY_PREFIX + "*"))
        foreground.send_signal(signal.SIGTERM)
        assert foreground.wait(60) == 0
    assert list(tmp_path.glob(DIRECTORY_PREFIX + "*")) == []
