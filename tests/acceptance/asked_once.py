"""What asks again asks for nothing: files that stay in the input folder, a source topic whose offsets are gone or that was made again."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from schemas.facts import RunSubmitted, RunSucceeded
from state.folding import decode_row
from state.keys import PREFIXES
from streams.demo.payments_file import generate
from streams.process.child import Child, ChildEnded
from streams.worker.topics import ensure_topics
from tests.acceptance.ground import App, Ground
from tests.acceptance.outside import Outside
from tests.acceptance.registry import Checks, line

PROJECT = Path(__file__).parent / "projects" / "intake" / "pipeline.yaml"
ROWS = 2
"""Of each file in the folder."""
FOLDER = ("input.poll=PT0.5S", "retention.executions=PT3S")
FORGETFUL = ("--forget-every-s", "1")
QUIET_S = 2.0
"""A request that should not be there has so long to come."""
ADMIN_S = 10.0
GROUP_EMPTY_S = 30.0
RECORDS = 30


@line(
    "asked_once",
    "A folder of 200 paid files: after retention, a restart, another owner, a cleared state directory, files put back: no request",
)
def folder(ground: Ground, checks: Checks) -> None:
    """Each time a new file tells when the folder was looked at."""
    count = ground.size(200, 20)
    app = ground.app("folder", overrides=FOLDER)
    place = app.folder / "in"
    paid = [generate(place / f"paid_{number:03}.csv", ROWS, number) for number in range(count)]
    app.provider()
    worker = app.worker("w1", altered=FORGETFUL)
    app.until(lambda: _succeeded(app) >= count, f"{count} files to be paid", timeout_s=120, every_s=0.3)
    app.until(lambda: _forgotten(app) >= count, "retention to let them go", timeout_s=60, every_s=0.5)
    checks.note("paid and let go", f"{count} files of {ROWS} rows, {_forgotten(app)} executions forgotten")
    story = _Folder(app, place, count, checks)
    story.look("retention")
    worker.end()
    worker = app.worker("w1", altered=FORGETFUL)
    story.look("a restart")
    second = app.worker("w2", state_dir=app.folder / "state-2", altered=FORGETFUL)
    worker.end()
    story.look("a change of owner")
    second.end()
    shutil.rmtree(app.folder / "state-2")
    app.worker("w2", state_dir=app.folder / "state-2", altered=FORGETFUL)
    story.look("the state directory cleared")
    for path in paid[:10]:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    for path in paid[10:20]:
        path.touch()
    story.look("files put back and touched")


class _Folder:
    """Looks at a folder of paid files, one after the other."""

    def __init__(self, app: App, place: Path, count: int, checks: Checks) -> None:
        self._app, self._place, self._count, self._checks = app, place, count, checks
        self._looks = 0

    def look(self, after: str) -> None:
        """A new file is paid, and nothing else is asked."""
        app = self._app
        self._looks += 1
        signal = generate(self._place / f"signal_{self._looks}.csv", ROWS, 1_000 + self._looks)
        app.until((app.output / f"{signal.name}.out").exists, f"{signal.name} to be paid", timeout_s=60)
        time.sleep(QUIET_S)
        requests = app.requests()
        expected = ROWS * (self._count + self._looks)
        twice = sum(number > 1 for number in requests.values())
        self._checks.that(
            f"after {after}: no request",
            sum(requests.values()) == expected,
            f"{sum(requests.values())} requests of {expected} rows, {twice} of them asked twice",
        )


def _started(app: App) -> int:
    return sum(isinstance(fact, RunSubmitted) for fact in app.facts())


def _succeeded(app: App) -> int:
    return sum(isinstance(fact, RunSucceeded) for fact in app.facts())


def _forgotten(app: App) -> int:
    """Executions of which there is no more than that they have been."""
    prefix = f"{PREFIXES['executions']}/".encode()
    rows = {record.key: record.value for record in app.records(app.names.changelog("executions"))}
    return sum(
        value is None or bool(getattr(decode_row(prefix + (key or b""), value), "forgotten", False))
        for key, value in rows.items()
    )


# --- topics --------------------------------------------------------------------------------------------------------------------------


class _Intake:
    """An application whose executions are the records of a topic; all that is asked is answered."""

    def __init__(self, ground: Ground, name: str) -> None:
        self.app = ground.app(name, path=PROJECT, files=False, overrides=("retention.executions=PT2S",))
        self.topic = f"{self.app.name}.orders"
        self.outside = Outside(self.app)
        self._admin = AdminClient({"bootstrap.servers": self.app.bootstrap, "log_level": 3})

    def send(self, ids: list[str]) -> None:
        """Write records, always to the same partitions."""
        producer = Producer({"bootstrap.servers": self.app.bootstrap})
        for number, name in enumerate(ids):
            producer.produce(self.topic, json.dumps({"id": name}), partition=number % self.app.pipeline.partitions)
        producer.flush(ADMIN_S)

    def asked(self) -> Counter[str]:
        """Requests by the id that they are about."""
        return Counter(request.payload["id"] for request in self.outside.asked)

    def until_succeeded(self, count: int) -> None:
        """Answer until so many executions have succeeded."""

        def done() -> bool:
            self.outside.turn()
            return _succeeded(self.app) >= count

        self.app.until(done, f"{count} executions to succeed", every_s=0.2)

    def settle(self) -> None:
        """Answer what comes for a while."""
        until_s = time.monotonic() + QUIET_S
        while time.monotonic() < until_s:
            self.outside.turn(0.1)

    def worker(self, *, wait: bool = True) -> Child:
        """A dynamic member: its group is empty once it has left."""
        return self.app.worker("auto", wait=wait, altered=FORGETFUL)

    def groups(self) -> list[str]:
        """Every group of the application."""
        listed = self._admin.list_consumer_groups(request_timeout=ADMIN_S).result(ADMIN_S).valid
        return [group.group_id for group in listed if group.group_id.startswith(f"{self.app.name}.")]

    def expire_offsets(self, groups: list[str]) -> None:
        """Delete all that groups have committed, as the broker does after a week."""
        for group in groups:
            self._delete(group)

    def _delete(self, group: str) -> None:
        """Once nobody is a member any more."""

        def deleted() -> bool:
            try:
                self._admin.delete_consumer_groups([group], request_timeout=ADMIN_S)[group].result(ADMIN_S)
            except KafkaException as error:
                return bool(error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND)
            return True

        self.app.until(deleted, f"the group {group} to be empty", timeout_s=GROUP_EMPTY_S, every_s=0.5)

    def make_again(self) -> None:
        """Delete the source topic, and make it under the same name."""
        self._admin.delete_topics([self.topic], operation_timeout=ADMIN_S)[self.topic].result(ADMIN_S)
        self.app.until(lambda: not self.app.log.topics([self.topic], ADMIN_S), "the topic to be gone", every_s=0.2)
        ensure_topics(self.app.pipeline, self.app.log)


def _names(kind: str) -> list[str]:
    return [f"{kind}-{number}" for number in range(RECORDS)]


@line(
    "asked_once",
    "A source topic with expired offsets: an error, nothing run; one made again: all new records run, once",
)
def source_topic(ground: Ground, checks: Checks) -> None:
    """Offsets are expired by deleting them; retention has let the executions go by then."""
    intake = _Intake(ground, "expired")
    worker = intake.worker()
    intake.send(_names("first"))
    intake.until_succeeded(RECORDS)
    intake.app.until(lambda: _forgotten(intake.app) >= RECORDS, "retention to let them go", every_s=0.3)
    worker.end()
    for what, groups in (("of the source topic", [f"{intake.app.name}.ingress"]), ("of every topic", intake.groups())):
        intake.expire_offsets(groups)
        child = intake.worker(wait=False)
        code = _ended(child, 20, intake)
        intake.settle()
        last = intake.app.logged("worker-auto").strip().splitlines()[-1]
        checks.that(
            f"expired offsets {what}: the worker stops with an error that names the topic",
            code not in {None, 0} and (intake.topic if len(groups) == 1 else intake.app.name) in last,
            f"{len(groups)} groups deleted; exit code {code}: {last[:300]}",
        )
        checks.that(
            f"expired offsets {what}: nothing is run",
            intake.asked() == Counter(_names("first")) and _started(intake.app) == RECORDS,
            f"{_started(intake.app)} executions and {intake.asked().total()} requests of {RECORDS} records",
        )
    intake.app.close()

    again = _Intake(ground, "made-again")
    worker = again.worker()
    again.send(_names("first"))
    again.until_succeeded(RECORDS)
    worker.end()
    again.make_again()
    again.send(_names("second"))
    again.worker()
    held = True
    try:
        again.until_succeeded(2 * RECORDS)
    except TimeoutError:
        held = False
    again.settle()
    asked = again.asked()
    new = sum(asked[name] for name in _names("second"))
    checks.that(
        "made again: all new records are run, once",
        held and asked == Counter([*_names("first"), *_names("second")]),
        f"{new} requests of {RECORDS} new records, {asked.total() - new} of {RECORDS} old ones",
    )


def _ended(child: Child, within_s: float, intake: _Intake) -> int | None:
    """A process's exit code, or None while it runs; answers go on."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            child.check()
        except ChildEnded:
            return child.wait(5)
        intake.outside.turn(0.2)
    return None
