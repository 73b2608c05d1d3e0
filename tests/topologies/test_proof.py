"""The proof of what is read: when it looks, what it reads ahead, what it notices (DECISIONS 16)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.objects.listing import identify
from connectors.objects.looks import TICK_S, Look
from schemas import limits
from schemas.errors import SourceChanged
from state.execution import ExecutionRecord, ExecutionStatus
from streams.roles.core import proof as proof_module
from streams.roles.core.proof import AHEAD_BYTES_MAX, ProvenItems, SourceProof, SourceTouched
from topologies.pipeline.items import SourceItem


def nothing() -> None:
    """Stands for what is called before each call of the author's."""


class Counted:
    """Items that are numbers, and when each was read; something may happen when one is read."""

    def __init__(self, count: int, *, size: int = 1, at: int = -1, act: Callable[[], object] = nothing) -> None:
        self.read_s: list[float] = []
        self._count = count
        self._size = size
        self._at = at
        self._act = act

    def pull(self, count: int) -> tuple[list[SourceItem], bool]:
        first = len(self.read_s)
        last = min(first + count, self._count)
        for index in range(first, last):
            if index == self._at:
                self._act()
            self.read_s.append(time.monotonic())
        items = [SourceItem(b"%d" % index + b" " * self._size, "") for index in range(first, last)]
        return items, last == self._count

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.csv"
    path.write_text("1\n2\n")
    return path


@pytest.fixture
def looked_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When somebody looked."""
    times: list[float] = []
    of = Look.of

    def noting(path: Path) -> Look:
        times.append(time.monotonic())
        return of(path)

    monkeypatch.setattr(Look, "of", noting)
    return times


def proof_of(file: Path) -> SourceProof:
    identity = identify(file)
    assert identity.look is not None
    execution = ExecutionRecord(
        execution_id="e",
        status=ExecutionStatus.RUNNING,
        tenant_id="t",
        pipeline="p",
        submission_key="k",
        submitted_at_ms=0,
        updated_at_ms=0,
        step_index=0,
        attempt=1,
        input=b"{}",
        source_size=identity.size,
        source_sha256=identity.sha256,
        source_path=identity.path,
        source_stamp=identity.look.stamp,
    )
    found = SourceProof.of(execution, 0)
    assert found is not None
    return found


def begun(file: Path) -> SourceProof:
    proof = proof_of(file)
    proof.begin(nothing)
    return proof


def numbers(items: list[SourceItem]) -> list[int]:
    return [int(item.request) for item in items]


def everything(proven: ProvenItems, at_once: int) -> list[list[int]]:
    pulls: list[list[int]] = []
    ended = False
    while not ended:
        items, ended = proven.pull(at_once, nothing)
        pulls.append(numbers(items))
    return pulls


@pytest.mark.parametrize("count", [0, 1, 7, 300, 5_000])
@pytest.mark.parametrize("at_once", [1_000, 64])
def test_every_item_is_handed_out_once_and_in_order(file: Path, count: int, at_once: int) -> None:
    pulls = everything(ProvenItems(Counted(count), begun(file)), at_once)
    assert [number for pull in pulls for number in pull] == list(range(count))
    assert all(len(pull) == at_once for pull in pulls[:-1])


def test_no_item_is_handed_out_before_a_look_that_is_a_tick_newer_than_its_reading(
    file: Path, looked_s: list[float]
) -> None:
    items, done = Counted(3_000), 0
    proven = ProvenItems(items, begun(file))
    ended = False
    while not ended:
        pulled, ended = proven.pull(250, nothing)
        done += len(pulled)
        assert looked_s[-1] >= items.read_s[done - 1] + TICK_S


def test_only_the_first_pull_waits_while_it_reads_ahead(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a small window costs no time for each of its pulls."""
    slept: list[float] = []
    sleep = time.sleep

    def sleeping(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)

    proof = begun(file)
    monkeypatch.setattr(time, "sleep", sleeping)
    proven = ProvenItems(Counted(100_000), proof)
    for _ in range(20):
        items, _ended = proven.pull(16, nothing)
        assert len(items) == 16
        sleep(0.001)  # the loop dispatches them
    assert len(slept) <= 2


@pytest.mark.parametrize(
    ("size", "ahead_max"), [(1, limits.PULL_ITEMS_MAX + 256), (100_000, AHEAD_BYTES_MAX // 100_000 + 257)]
)
def test_what_is_read_ahead_is_bounded(file: Path, size: int, ahead_max: int) -> None:
    items = Counted(1_000_000, size=size)
    proven = ProvenItems(items, begun(file))
    for pulls in range(1, 30):
        proven.pull(16, nothing)
        assert len(items.read_s) - 16 * pulls <= ahead_max


@pytest.mark.parametrize("at", [0, 5, 9])
def test_a_change_while_the_last_items_are_read_is_noticed(file: Path, at: int) -> None:
    def overwrite() -> None:
        before = file.stat()
        file.write_text("3\n4\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    proven = ProvenItems(Counted(10, at=at, act=overwrite), begun(file))
    with pytest.raises(SourceChanged) as raised:
        proven.pull(10, nothing)
    assert not raised.value.retryable


def test_a_change_that_no_look_shows_is_noticed_before_the_source_has_ended(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system, or by a memory map."""
    proof, look = begun(file), Look.of(file)
    monkeypatch.setattr(Look, "of", lambda _path: look)
    proven = ProvenItems(Counted(10, at=5, act=lambda: file.write_text("3\n4\n")), proof)
    assert len(proven.pull(9, nothing)[0]) == 9
    with pytest.raises(SourceChanged):
        proven.pull(10, nothing)


def test_a_touched_object_is_worth_another_try(file: Path) -> None:
    proven = ProvenItems(Counted(10, at=5, act=lambda: os.utime(file)), begun(file))
    with pytest.raises(SourceTouched) as raised:
        proven.pull(10, nothing)
    assert (raised.value.retryable, raised.value.code) == (True, "SOURCE_CHANGED")


def test_what_fails_after_a_change_fails_because_of_it(file: Path) -> None:
    def cut_and_fail() -> None:
        file.write_text("1\n")
        raise ValueError("half a row")

    proven = ProvenItems(Counted(10, at=5, act=cut_and_fail), begun(file))
    with pytest.raises(SourceChanged):
        proven.pull(10, nothing)


def test_what_fails_without_a_change_fails_by_itself(file: Path) -> None:
    def fail() -> None:
        raise ValueError("no number")

    with pytest.raises(ValueError, match="no number"):
        ProvenItems(Counted(10, at=5, act=fail), begun(file)).pull(10, nothing)


def test_an_object_that_is_another_one_before_it_is_read_is_not_read(file: Path) -> None:
    proof = proof_of(file)
    file.write_text("3\n4\n")
    with pytest.raises(SourceChanged):
        proof.begin(nothing)


def test_one_that_was_touched_before_it_is_read_is(file: Path) -> None:
    proof = proof_of(file)
    os.utime(file)
    proof.begin(nothing)
    assert len(everything(ProvenItems(Counted(10), proof), 10)) == 1


def test_a_missing_object_is_missing_and_not_changed(file: Path) -> None:
    proof = proof_of(file)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        proof.begin(nothing)


def test_reading_the_whole_restarts_the_time_limit_with_each_chunk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.objects.looks.HASH_CHUNK_BYTES", 1)
    restarted: list[None] = []
    proof_of(file).begin(lambda: restarted.append(None))
    assert len(restarted) == file.stat().st_size + 1
    assert proof_module.AHEAD_ITEMS <= limits.PULL_ITEMS_MAX
