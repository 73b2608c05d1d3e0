"""A throw-away Apache Kafka: one real KRaft node on this machine, for tests, ``kawait demo --kafka`` and the bench.

What happens, in order (SURFACE "Set-up"):

1. *Jars.* `streams.broker.jars` finds Java, and resolves Kafka through Maven the first time.
2. *Storage.* A fresh directory below the temporary directory is formatted for one combined broker and controller.
3. *Start.* ``kafka.Kafka`` runs directly on ``java -cp``, without the distribution's shell scripts; ready means that an
   admin request was answered.
4. *End.* The node dies with the process that started it: ``PR_SET_PDEATHSIG`` covers SIGKILL, ``atexit`` the rest.

The settings differ from a cluster only where one node must (replication factors of 1) or where a wait would be idle
(no rebalance delay); the timeouts that
clients see keep Kafka's defaults, so that what a test measures is what a user meets.

``python -m streams.broker`` runs one in the foreground and prints ``bootstrap=127.0.0.1:PORT``.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streams.broker.jars import BrokerError, require_java, resolve_kafka, run_tool, silent, tail
from streams.process.signals import stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO
from streams.process.launcher import LAUNCHER

START_DEADLINE_S: Final = 60.0  # about 6 s on two idle cores; ten times that on busy ones
STOP_DEADLINE_S: Final = 10.0
POLL_S: Final = 0.05
WATCH_S: Final = 0.5
RECORD_BYTES_MAX: Final = 16 * 1024 * 1024  # as our own topics (DESIGN 4)
# Below Linux's ephemeral range (32768+): no outgoing connection takes the port of a broker that is down for a restart.
PORT_FIRST: Final = 20_000
PORT_COUNT: Final = 12_000
DIRECTORY_PREFIX: Final = "kawait-broker-"

# A big young collection is cheaper than G1's concurrent threads on two cores that producer and consumer need as well.
JVM_FLAGS: Final = (
    "-Xms256m",
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)
# The formatting tool lives for a second: the optimising compiler would not pay.
TOOL_FLAGS: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData")
LOG_FLAGS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


_ports_given: set[int] = set()
_ports_lock = threading.Lock()


def _free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on and that this process has not handed out before.

    Raises:
        BrokerError: none was found in `PORT_FIRST` .. + `PORT_COUNT`.
    """
    start = secrets.randbelow(PORT_COUNT)
    with _ports_lock:
        for step in range(PORT_COUNT):
            port = PORT_FIRST + (start + step) % PORT_COUNT
            if port in _ports_given:
                continue
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                _ports_given.add(port)
                return port
    message = f"no free port between {PORT_FIRST} and {PORT_FIRST + PORT_COUNT - 1} on 127.0.0.1"
    raise BrokerError(message)


def _node_properties(directory: Path, client_port: int, controller_port: int) -> dict[str, str]:
    """The server's properties: one node, broker and controller, on the loopback interface."""
    record_max = str(RECORD_BYTES_MAX)
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CLIENT://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"CLIENT://127.0.0.1:{client_port}",
        "inter.broker.listener.name": "CLIENT",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "data"),
        # One node: nothing to replicate to, and few partitions of the internal topics to load at start.
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # A missing topic is an error to be seen, not a topic with wrong settings.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "message.max.bytes": record_max,
        "replica.fetch.max.bytes": record_max,
        "socket.request.max.bytes": str(8 * RECORD_BYTES_MAX),
        # The default map for compaction is 128 MiB of a heap of 1 GiB.
        "log.cleaner.enable": "true",
        "log.cleaner.dedupe.buffer.size": record_max,
        # After a SIGKILL the node waits for its own dead registration to lapse: 9 s by default.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
    }


def _filled(properties: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Properties with each placeholder's value in its place."""
    filled = dict(properties)
    for placeholder, value in values.items():
        filled = {name: text.replace(placeholder, value) for name, text in filled.items()}
    return filled


def _sweep(parent: Path) -> None:
    """Remove directories of brokers whose owner was killed: nobody holds their lock any more."""
    for directory in parent.glob(DIRECTORY_PREFIX + "*"):
        with contextlib.suppress(OSError), (directory / "owner.lock").open("r+") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)


class ThrowawayBroker:
    """One Kafka node that lives as long as this object, or as this process, whichever ends first.

    Start it from a thread that stays (usually the main thread): Linux ties the parent-death signal to the thread that
    started the child.

    Args:
        properties: server properties laid over the built-in ones, for example ``{"message.max.bytes": "1000000"}``.
            A value may name the node's ports as ``{client_port}`` and ``{controller_port}``.
        directory: where data and log go; kept on `stop`. Default: a fresh temporary directory, removed on `stop`.
        report: called with a line of progress for a person.
    """

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        directory: Path | None = None,
        report: Callable[[str], None] = silent,
    ) -> None:
        self._overrides = dict(properties or {})
        self._kept = directory is not None
        self._directory = directory
        self._report = report
        self._owner_pid = os.getpid()
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: tuple[int, int] | None = None
        self._command: Sequence[str] = ()

    # -- what it is

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients; the same over restarts."""
        if self._ports is None:
            message = "the broker was never started: call start() first"
            raise BrokerError(message)
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int | None:
        """Process id of the Java process, None while it is down."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def directory(self) -> Path:
        """Directory with the node's properties, data and log."""
        if self._directory is None:
            message = "the broker has no directory: it was never started, or it is stopped"
            raise BrokerError(message)
        return self._directory

    @property
    def log_path(self) -> Path:
        """File with what the node printed, over all its starts."""
        return self.directory / "broker.log"

    # -- its life

    def start(self) -> str:
        """Resolve, format and start the node; return its bootstrap once it answers.

        Raises:
            BrokerError: a tool is missing, or the node did not come up; the message carries its last log lines.
        """
        if self.pid is not None:
            return self.bootstrap
        if not self._command:
            self._prepare()
        self._launch()
        return self.bootstrap

    def check(self) -> None:
        """Do nothing while the node runs.

        Raises:
            BrokerError: it ended by itself.
        """
        if self.pid is None:
            message = f"Kafka is not running. {self._last_lines()}"
            raise BrokerError(message)

    def stop(self) -> None:
        """End the node in good order (SIGTERM, then SIGKILL) and remove its directory; harmless when it is down."""
        self._end(signal.SIGTERM)
        atexit.unregister(self._stop_at_exit)
        self._command, self._ports = (), None
        if self._lock is not None:
            if not self._kept:
                shutil.rmtree(self.directory, ignore_errors=True)
                self._directory = None
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """End the node with SIGKILL and keep its ports and data for `restart`."""
        self._end(signal.SIGKILL)

    def restart(self) -> str:
        """Stop the node if it runs and start it again on the same ports and data; return its bootstrap.

        Raises:
            BrokerError: it did not come up again.
        """
        if not self._command:
            message = "the broker was never started, or it is stopped and its data is gone: call start()"
            raise BrokerError(message)
        self._end(signal.SIGTERM)
        self._launch()
        return self.bootstrap

    def __enter__(self) -> Self:
        """Start the node."""
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop the node."""
        self.stop()

    # -- how

    def _prepare(self) -> None:
        """Find the tools, claim directory and ports, write the properties, format the storage."""
        java = require_java(self._report)
        classpath = os.pathsep.join(str(jar) for jar in resolve_kafka(self._report))
        self._claim_directory()
        self._ports = (_free_port(), _free_port())
        ports = {"{client_port}": str(self._ports[0]), "{controller_port}": str(self._ports[1])}
        settings = {**_node_properties(self.directory, *self._ports), **_filled(self._overrides, ports)}
        config = self.directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        tool = [java, *TOOL_FLAGS, *LOG_FLAGS, "-cp", classpath, "kafka.tools.StorageTool"]
        # A cluster id is 22 characters of URL-safe base64; any will do for a cluster of one. With `=`: one may begin with a dash.
        code, said = run_tool(
            [*tool, "format", "--ignore-formatted", f"--cluster-id={secrets.token_urlsafe(16)}", "-c", str(config)]
        )
        if code != 0:
            message = f"Kafka's storage could not be formatted in {self.directory}. It said:\n{tail(said)}"
            self.stop()
            raise BrokerError(message)
        self._command = [java, *JVM_FLAGS, *LOG_FLAGS, "-cp", classpath, "kafka.Kafka", str(config)]
        atexit.register(self._stop_at_exit)

    def _claim_directory(self) -> None:
        """Make the directory and hold its lock, so that no other process sweeps it."""
        if self._directory is None:
            parent = Path(tempfile.gettempdir())
            _sweep(parent)
            self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=parent))
        self._directory.mkdir(parents=True, exist_ok=True)
        lock = (self._directory / "owner.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            message = f"another broker uses {self._directory}: choose another directory, or stop that one"
            raise BrokerError(message) from error
        self._lock = lock

    def _launch(self) -> None:
        """Start the Java process and wait until it answers."""
        self._report("starting Apache Kafka")
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid())]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C reaches the application first, which then stops its broker
            )
        self._wait_ready(self._process)

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the node answers an admin request.

        Raises:
            BrokerError: it exited, or `START_DEADLINE_S` passed.
        """
        deadline_s = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(POLL_S)
                message = f"Kafka exited with {code} while starting. {self._last_lines()}"
                raise BrokerError(message)
            if self._answers():
                return
        self._end(signal.SIGKILL)
        message = f"Kafka did not answer on {self.bootstrap} within {START_DEADLINE_S:.0f} s. {self._last_lines()}"
        raise BrokerError(message)

    def _answers(self) -> bool:
        """Tell whether the node takes connections and answers a metadata request with itself as a member."""
        host, port = self.bootstrap.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            metadata = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=2)
        except (OSError, KafkaException):
            return False
        return bool(metadata.brokers)

    def _end(self, how: signal.Signals) -> None:
        """Send a signal and wait for the end; SIGKILL after `STOP_DEADLINE_S`."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _stop_at_exit(self) -> None:
        """Stop at the interpreter's end, but not at that of a forked child."""
        if os.getpid() == self._owner_pid:
            self.stop()

    def _last_lines(self) -> str:
        return f"Its last lines ({self.log_path}):\n{tail(self.log_path.read_text(errors='replace'))}"


@contextlib.contextmanager
def running_broker(report: Callable[[str], None] = silent) -> Iterator[str]:
    """Yield the bootstrap of ``$KAWAIT_BOOTSTRAP`` if set, else of a throw-away broker that ends with the block."""
    given = os.environ.get("KAWAIT_BOOTSTRAP")
    if given:
        yield given
        return
    with ThrowawayBroker(report=report) as broker:
        yield broker.bootstrap


def main() -> int:
    """Run a broker in the foreground until SIGTERM or SIGINT; print its bootstrap."""
    ended = stop_on_signals()
    try:
        with ThrowawayBroker(report=lambda line: print(line, file=sys.stderr)) as broker:
            print(f"bootstrap={broker.bootstrap}", flush=True)
            while not ended.wait(WATCH_S):
                broker.check()
    except BrokerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
