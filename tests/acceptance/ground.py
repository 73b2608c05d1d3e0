"""What the lines stand on: a broker, applications on it with workers and providers as processes, and readers of their topics."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from connectors.objects.listing import identify
from schemas import codec
from schemas.envelopes import DeadLetter, ExecutionOutcome, Refusal
from schemas.errors import LogUnavailable
from schemas.facts import Fact
from schemas.identity import home_partition
from schemas.names import Names
from state.execution import TERMINAL
from streams.broker.node import ThrowawayBroker
from streams.demo.kafka import remove_app
from streams.demo.payments_file import generate
from streams.demo.run import PIPELINE, payment_topics
from streams.doors.submissions import command_for_object, send
from streams.log.kafka.connection import Connection
from streams.log.kafka.log import KafkaLog
from streams.log.seam import Record, TopicPartition
from streams.log.snapshot import read
from streams.process.child import COMMAND_LINE, Child, end_all
from streams.process.launcher import child_environment
from streams.worker.topics import ensure_topics
from topologies.reading.choice import PipelineChoice

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
AWAIT = "steps.await-payment-provider"
ALTERED_WORKER = "tests.acceptance.altered_worker"
TOKEN_NAME = "KAWAIT_TOKEN_K1"
READY_S = 60.0
SAMPLE_S = 0.1
ENDED = frozenset(str(status) for status in TERMINAL)


class Ground:
    """What all lines share.

    Args:
        folder: For everything that the lines write.
        quick: Fewer rows and rounds.
        seed: Of what is random.
        bootstrap: A broker that is there; None: `KAWAIT_BOOTSTRAP`, or one of our own.
    """

    def __init__(self, folder: Path, *, quick: bool = False, seed: int = 1, bootstrap: str | None = None) -> None:
        self.folder = folder
        self._given = bootstrap or os.environ.get("KAWAIT_BOOTSTRAP")
        self.quick = quick
        self.seed = seed
        self.secret = secrets.token_urlsafe(32)
        self.environ = {**os.environ, TOKEN_NAME: self.secret}
        self._broker: ThrowawayBroker | None = None
        self._open: list[App] = []
        self._baselines: dict[tuple[str, ...], dict[str, bytes]] = {}

    def size(self, full: int, quick: int) -> int:
        """A number of rows or rounds."""
        return quick if self.quick else full

    @property
    def bootstrap(self) -> str:
        """A broker that no line may harm."""
        return self._given or self.broker().bootstrap

    def broker(self) -> ThrowawayBroker:
        """The broker of the lines that do not bring their own."""
        if self._broker is None:
            self._broker = ThrowawayBroker()
            self._broker.start()
        return self._broker

    def app(self, name: str, **more: Any) -> App:
        """An application of a line's own; closed at the line's end."""
        made = App(self, f"{name}-{secrets.token_hex(3)}", **more)
        self._open.append(made)
        return made

    def payments(self, rows: int, *, name: str | None = None, seed: int = 1) -> Path:
        """A generated input file; the same place each time, as record ids follow from it."""
        path = self.folder / "inputs" / (name or f"payments_{rows}_{seed}.csv")
        return path if path.exists() else generate(path, rows, seed)

    def undisturbed(self, inputs: Sequence[Path]) -> dict[str, bytes]:
        """What an undisturbed run makes of these files (on the memory log, with the same input paths): output name -> bytes."""
        key = tuple(map(str, inputs))
        if key not in self._baselines:
            output = self.folder / f"undisturbed-{len(self._baselines)}"
            arguments = [part for path in inputs for part in ("--input", str(path))]
            self.kawait("demo", *arguments, "--output", str(output))
            self._baselines[key] = {path.name: path.read_bytes() for path in output.glob("*.out")}
        return self._baselines[key]

    def kawait(
        self, *arguments: str, check: bool = True, timeout_s: float = 600, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "streams", *arguments],
            check=check,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=self.folder,
            env=child_environment(environ or self.environ),
        )

    def clear(self) -> None:
        """End what a line left."""
        for app in self._open:
            app.close()
        self._open.clear()

    def close(self) -> None:
        """End everything."""
        self.clear()
        if self._broker is not None:
            self._broker.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class App:
    """An application under a name of its own: csv-payments unless another pipeline is given.

    Args:
        name: Its app name.
        bootstrap: Where its topics are; None: the shared broker.
        overrides: As `--set`.
        topics: Create its topics now.
        path: Its pipeline file.
        files: It reads and writes files, in folders of its own.
    """

    def __init__(
        self,
        ground: Ground,
        name: str,
        *,
        bootstrap: str | None = None,
        overrides: Sequence[str] = (),
        topics: bool = True,
        path: Path = PIPELINE,
        files: bool = True,
    ) -> None:
        self.ground = ground
        self.path = path
        self.name = name
        self.bootstrap = bootstrap or ground.bootstrap
        self.folder = ground.folder / name
        self.output = self.folder / "out"
        self.state_dir = self.folder / "state"
        (self.folder / "in").mkdir(parents=True)
        self.output.mkdir()
        places = (f"output.location={self.output}", f"input.location={self.folder / 'in'}")
        self.overrides = (*(places if files else ()), *overrides)
        self.pipeline = PipelineChoice(path=path, app=name, overrides=self.overrides).load(ground.environ)
        self.names = Names.of(name)
        self.requests_topic, self.results_topic = payment_topics(self.pipeline)
        self.children: list[Child] = []
        self.at_close: list[Callable[[], object]] = []
        self._told: dict[str, ExecutionOutcome] = {}
        self._closed = False
        self._reader: Any = None
        self.log = KafkaLog(self.bootstrap)
        if topics:
            ensure_topics(self.pipeline, self.log)
        self._producer = self.log.plain_producer()

    # --- processes -------------------------------------------------------------------------------------------------------------------

    def arguments(self, bootstrap: str | None = None, overrides: Sequence[str] = ()) -> list[str]:
        """Pipeline and common options of a command."""
        sets = [part for override in (*self.overrides, *overrides) for part in ("--set", override)]
        return [str(self.path), "--app", self.name, "--bootstrap", bootstrap or self.bootstrap, *sets]

    def worker(
        self,
        instance: str = "w1",
        *,
        roles: str = "core,ingress,continuation",
        bootstrap: str | None = None,
        state_dir: Path | None = None,
        wait: bool = True,
        overrides: Sequence[str] = (),
        altered: Sequence[str] = (),
    ) -> Child:
        """Start a worker; with `wait`, until it has joined and restored.

        `altered`: options of `altered_worker`, for one whose clock is off or that forgets sooner.
        """
        own = ["--roles", roles, "--instance", instance, "--state-dir", str(state_dir or self.state_dir)]
        arguments = ["worker", *self.arguments(bootstrap, overrides), *own, "--admin-port", "off"]
        if altered:
            child = self._child(f"worker-{instance}", [*altered, "--", *arguments], module=ALTERED_WORKER)
        else:
            child = self._child(f"worker-{instance}", arguments)
        if wait:
            child.wait_ready(time.monotonic() + READY_S)
        return child

    def provider(self, *arguments: str) -> Child:
        """Start the mock provider."""
        return self._child("provider", ["provider", *self.arguments(), *arguments])

    def _child(self, name: str, arguments: Sequence[str], *, module: str = COMMAND_LINE) -> Child:
        log_path = self.folder / f"{name}.log"
        child = Child(name, arguments, environ=self.ground.environ, log_path=log_path, module=module)
        self.children.append(child)
        return child

    @staticmethod
    def kill(child: Child) -> None:
        """End a process as a power cut would."""
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)

    def logged(self, name: str) -> str:
        """What a process wrote to stderr, over all its starts."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # --- submitting and waiting --------------------------------------------------------------------------------------------------------

    def submit(self, path: Path) -> str:
        """Submit a file; returns the execution id."""
        command = command_for_object(self.pipeline, identify(path))
        send(self.pipeline, self._producer, command, timeout_s=30)
        return command.execution_id

    def ended(self, ids: Sequence[str], wait_s: float = 0.05) -> bool:
        """Whether all of these have ended; reads what has come."""
        if self._reader is None:
            at = [TopicPartition(self.names.replies, number) for number in range(self.pipeline.partitions)]
            self._reader = self.log.reader()
            self._reader.assign(dict.fromkeys(at, 0))
        with contextlib.suppress(LogUnavailable):
            for record in self._reader.poll(500, wait_s):
                told = codec.decode(record.value) if record.value else None  # empty: a probe of the broker's time
                if isinstance(told, ExecutionOutcome) and told.status in ENDED:
                    self._told[told.execution_id] = told
        return all(name in self._told for name in ids)

    def wait(
        self, ids: Sequence[str], *, timeout_s: float = 180, turn: Callable[[], None] = lambda: None
    ) -> dict[str, ExecutionOutcome]:
        """Wait until all of these have ended.

        Raises:
            TimeoutError: not in time; with how far they are.
        """
        until_s = time.monotonic() + timeout_s
        while not self.ended(ids):
            turn()
            if time.monotonic() > until_s:
                raise TimeoutError(f"{self.standing(ids)} within {timeout_s:.0f} s; last words:\n{self.last_words()}")
        return {name: self._told[name] for name in ids}

    def standing(self, ids: Sequence[str]) -> str:
        """How far executions are, for an error."""
        kinds = Counter(type(fact).__name__ for fact in self.facts() if fact.execution_id in ids)
        missing = [name for name in ids if name not in self._told]
        return f"{len(missing)} of {len(ids)} executions have not ended ({missing[:2]}); facts {dict(kinds)}"

    def last_words(self) -> str:
        """The ends of its processes' logs."""
        return "\n".join(
            f"{path.name}: " + " | ".join(path.read_text(errors="replace").splitlines()[-8:])
            for path in sorted(self.folder.glob("*.log"))
        )

    def until(self, done: Callable[[], object], what: str, *, timeout_s: float = 60, every_s: float = 0.05) -> None:
        """Wait for a condition.

        Raises:
            TimeoutError: it did not come.
        """
        until_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > until_s:
                raise TimeoutError(f"{what}: not within {timeout_s:.0f} s; last words:\n{self.last_words()}")
            time.sleep(every_s)

    # --- reading -------------------------------------------------------------------------------------------------------------------------

    def records(self, topic: str, *, partitions: int | None = None) -> Iterator[Record]:
        """Everything committed on a topic."""
        count = partitions or self.log.topics([topic], 10.0)[topic].partitions
        return read(self.log, [TopicPartition(topic, number) for number in range(count)])

    def requests(self) -> Counter[str]:
        """Committed request records by interaction id."""
        return Counter(json.loads(record.value or b"")["interactionId"] for record in self.records(self.requests_topic))

    def facts(self) -> Iterator[Fact]:
        """Every committed fact."""
        for record in self.records(self.names.facts):
            fact = codec.decode(record.value)
            if isinstance(fact, Fact):
                yield fact

    def refusals(self) -> list[Refusal]:
        """Every refused answer."""
        found = (codec.decode(record.value) for record in self.records(self.names.refusals))
        return [refusal for refusal in found if isinstance(refusal, Refusal)]

    def dead_letters(self) -> list[DeadLetter]:
        """Every dead letter."""
        found = (codec.decode(record.value) for record in self.records(self.names.dlq))
        return [letter for letter in found if isinstance(letter, DeadLetter)]

    def offsets(self, topic: str) -> dict[int, int]:
        """Ends of a topic's partitions, transactions still open included."""
        count = self.pipeline.partitions
        at = [TopicPartition(topic, number) for number in range(count)]
        return {found.partition: end for found, end in self.log.end_offsets(at, "uncommitted", 5.0).items()}

    def reach(self, facts: int, *, timeout_s: float = 120) -> None:
        """Wait until there are so many facts, about; a row makes three."""
        self.until(lambda: sum(self.offsets(self.names.facts).values()) >= facts, f"{facts} facts", timeout_s=timeout_s)

    def source_ended(self, count: int = 1) -> bool:
        """Whether the sources of so many executions have been read to their ends."""
        return sum(type(fact).__name__ == "SourceEnded" for fact in self.facts()) >= count

    # --- judging -------------------------------------------------------------------------------------------------------------------------

    def judge(
        self, rows: int, inputs: Sequence[Path], told: Mapping[str, ExecutionOutcome], expected: Mapping[str, bytes]
    ) -> tuple[bool, str]:
        """Nothing lost or doubled: one request record, one admission and one continuation a row, files equal to an undisturbed run's."""
        faults: list[str] = []
        bad = [reply for reply in told.values() if reply.status != "SUCCEEDED"]
        if bad:
            faults.append(f"{len(bad)} executions {bad[0].status}: {bad[0].error_code} {bad[0].error_message}")
        requests = self.requests()
        twice = [name for name, count in requests.items() if count > 1]
        if len(requests) != rows or twice:
            faults.append(f"{len(requests)} of {rows} rows have a request, {len(twice)} more than one {twice[:3]}")
        kinds: defaultdict[str, Counter[tuple[str, int | None]]] = defaultdict(Counter)
        for fact in self.facts():
            if hasattr(fact, "item_index"):
                kinds[type(fact).__name__][getattr(fact, "unit_id", ""), fact.item_index] += 1
        for kind in ("BoundaryInteractionDispatched", "BoundaryCompletionAdmitted", "ContinuationCompleted"):
            counted = kinds[kind]
            if len(counted) != rows or sum(counted.values()) != rows:
                faults.append(f"{kind}: {sum(counted.values())} facts of {len(counted)} items, not {rows}")
        for path in inputs:
            name = f"{path.name}.out"
            target = self.output / name
            if not target.exists():
                faults.append(f"{name} is missing")
            elif target.read_bytes() != expected[name]:
                faults.append(f"{name} differs: {len(target.read_bytes().splitlines())} lines")
        others = sorted({path.name for path in self.output.iterdir()} - {f"{path.name}.out" for path in inputs})
        if others:
            faults.append(f"left over: {others[:3]}")
        letters = self.dead_letters()
        if letters:
            faults.append(f"{len(letters)} dead letters: {letters[0].reason} {letters[0].detail[:200]}")
        return not faults, "; ".join(faults) or f"{rows} rows"

    def close(self) -> None:
        """End its processes, remove its topics and files; harmless when it was done before."""
        if self._closed:
            return
        self._closed = True
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)
        end_all(self.children)
        for close in self.at_close:
            close()
        if self._reader is not None:
            self._reader.close()
        self._producer.close()
        with contextlib.suppress(Exception):
            remove_app(self.pipeline, Connection(bootstrap=self.bootstrap))
        if not os.environ.get("KAWAIT_ACCEPTANCE_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)


class Watch:
    """Samples the ends of the facts partitions, to tell how long an execution stood still.

    A partition stands still from one change of its end to the next; only partitions of given executions count, from their submission to
    their last change.
    """

    def __init__(self, app: App, ids: Sequence[str]) -> None:
        self._app = app
        self._partitions = {home_partition(name, app.pipeline.partitions) for name in ids}
        self._changes: dict[int, list[float]] = {number: [time.monotonic()] for number in self._partitions}
        self._last: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            with contextlib.suppress(LogUnavailable):
                now_s = time.monotonic()
                for number, end in self._app.offsets(self._app.names.facts).items():
                    if number in self._partitions and self._last.get(number) != end:
                        self._last[number] = end
                        self._changes[number].append(now_s)

    def first_change_after(self, at_s: float) -> float | None:
        """When something moved first after a moment."""
        later = [found for changes in self._changes.values() for found in changes if found > at_s]
        return min(later, default=None)

    def stop(self) -> float:
        """End; returns the longest standstill in seconds."""
        self._stop.set()
        self._thread.join()
        gaps = [after - before for changes in self._changes.values() for before, after in itertools.pairwise(changes)]
        return max(gaps, default=0.0)
