"""The input folder of a simulated run: files that are uploaded in parts, change, go and come back, also while they are read.

Real files in a folder of the run, but their looks are the simulation's: an inode is a number that the world gives, times are those of its clock,
and every change shows. So equal runs see equal looks, and nobody waits for the tick of a real clock. (What a tick hides is tested on real files.)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from connectors.objects import looks
from connectors.objects.listing import CUT_FACTOR, ObjectIdentity, submission_key
from connectors.objects.looks import Look
from schemas.envelopes import SubmitCommand
from streams.clock import ManualClock
from streams.doors import submissions
from streams.simulation.coverage import Coverage
from streams.simulation.scenario import Say, Scenario
from topologies.pipeline.ends import ObjectSource

FILES_MAX = 4
ROWS_MAX = 8
UPLOADS_MAX = 2


class _Stat(NamedTuple):
    """What the simulation says of a file."""

    inode: int
    mtime_ns: int
    ctime_ns: int


class _Upload(NamedTuple):
    """A file that is on its way in."""

    path: Path
    rest: bytes
    since_s: float


class Folder:
    """The input folder, and what happens in it.

    Attributes:
        unfinished: Contents by checksum that nobody may take for whole: they were there for a moment only.
        touched: Paths of files that changed after they were whole.
    """

    def __init__(self, scenario: Scenario, clock: ManualClock, rng: Random, coverage: Coverage, say: Say) -> None:
        source = scenario.pipeline.source
        assert isinstance(source, ObjectSource)
        self._source = source
        self._scenario = scenario
        self._clock = clock
        self._rng = rng
        self._coverage = coverage
        self._say = say
        self._stats: dict[int, _Stat] = {}
        self._changes = 0
        self._made = 0
        self._uploads: list[_Upload] = []
        self._is_changing = False
        self.unfinished: set[str] = set()
        self.touched: set[str] = set()
        source.location.mkdir(parents=True)

    # --- moves -------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Do one thing that people and programs do to files."""
        kinds: tuple[Callable[[], None], ...] = (
            self._put,
            self._begin_upload,
            self._go_on_uploading,
            self._go_on_uploading,
            self._change_some,
            self._change_some,
            self._take_out,
            self._put_back,
        )
        self._rng.choice(kinds)()

    def finish(self) -> None:
        """Nothing is uploaded or changed any more."""
        self._is_changing = False
        while self._uploads:
            self._go_on_uploading()
        self._put()

    def may_change_while_it_is_read(self, *, on: bool) -> None:
        """Whether files change between two lines that an author's function reads."""
        self._is_changing = on
        self._scenario.author.between_lines[0] = self._between_lines

    def _between_lines(self, path: Path) -> None:
        if self._is_changing and path.parent == self._source.location and self._rng.random() < 0.15:
            self._coverage.faults["file changed under the reader"] += 1
            self._change(path)

    def _put(self) -> None:
        if self._made < FILES_MAX:
            self._write(self._new_path(), self._rows(self._rng.randint(0, ROWS_MAX)), "puts")

    def _begin_upload(self) -> None:
        if self._made >= FILES_MAX or len(self._uploads) >= UPLOADS_MAX:
            return
        path, content = self._new_path(), self._rows(self._rng.randint(1, ROWS_MAX))
        self._uploads.append(_Upload(path, content, self._clock.monotonic_s()))
        self._go_on_uploading()

    def _go_on_uploading(self) -> None:
        """Append the next part; what lay there before for so short a time was not whole."""
        if not self._uploads:
            return
        upload = self._uploads.pop(0)
        before = upload.path.read_bytes() if upload.path.exists() else None
        now_s = self._clock.monotonic_s()
        self._note_unfinished(upload.path, before, (now_s - upload.since_s) * 1_000)
        length = self._rng.choice((1, 7, len(upload.rest), len(upload.rest)))
        part, rest = upload.rest[:length], upload.rest[length:]
        self._coverage.faults["upload pauses"] += bool(rest)
        if rest:
            self._uploads.append(_Upload(upload.path, rest, now_s))
        self._write(upload.path, (before or b"") + part, "uploads")

    def _note_unfinished(self, path: Path, content: bytes | None, lay_ms: float) -> None:
        if content is None:
            return
        is_cut = not content.endswith(b"\n")
        wait_ms = self._source.settle_ms * (CUT_FACTOR if is_cut else 1)
        if lay_ms < wait_ms * 0.99 or self._source.ready_suffix is not None:
            self.unfinished.add(_checksum(content))
        else:  # a pause so long makes it whole
            self.touched.add(str(path))

    def _change_some(self) -> None:
        paths = [path for path in self.files() if all(path != upload.path for upload in self._uploads)]
        if paths:
            self._coverage.faults["file changed"] += 1
            self._change(self._rng.choice(paths))

    def _change(self, path: Path) -> None:
        """Append to a file, cut it, overwrite it, replace it with one that looks the same, or only touch it."""
        if not path.exists():
            return
        self.touched.add(str(path))
        content = path.read_bytes()
        lines = content.splitlines(keepends=True)
        kind = self._rng.choice(("append", "truncate", "overwrite", "replace", "touch"))
        if kind == "append":
            self._write(path, content + self._rows(1), kind)
        elif kind == "truncate":
            self._write(path, b"".join(lines[:-1]), kind)
        elif kind == "overwrite":
            self._write(path, content.replace(b",0\n", b",1\n", 1), kind)
        elif kind == "replace":
            twin = path.with_name(".twin")
            twin.write_bytes(content.replace(b",0\n", b",2\n", 1))
            twin.replace(path)
            self._stamp(path, mtime_ns=self._look(path).mtime_ns)
            self._note(path, kind)
        else:
            self._stamp(path)
            self._note(path, kind)

    def _take_out(self) -> None:
        """Somebody moves a file away."""
        paths = self.files()
        if paths:
            path = self._rng.choice(paths)
            self._uploads = [upload for upload in self._uploads if upload.path != path]
            self.touched.add(str(path))
            self._coverage.faults["file taken out"] += 1
            self._say(f"folder: {path.name} is taken out")
            path.unlink()

    def _put_back(self) -> None:
        """A file of the same name and content as one before comes, if that one is gone."""
        known = sorted(self._scenario.contents)
        if not known:
            return
        name, content = self._scenario.contents[self._rng.choice(known)]
        path = self._source.location / name
        if not path.exists() and _checksum(content) not in self.unfinished:
            self._coverage.faults["file came back"] += 1
            self._write(path, content, "brings back")

    # --- files -------------------------------------------------------------------------------------------------------

    def files(self) -> list[Path]:
        """What lies in the folder for everybody to see."""
        return sorted(self._source.location.glob("*.txt"))

    def expected(self) -> set[str]:
        """The executions that the files which lie here now belong to."""
        found = set()
        for path in self.files():
            content = path.read_bytes()
            identity = ObjectIdentity(path.name, str(path), len(content), _checksum(content))
            found.add(submissions.id_of_listed(self._scenario.pipeline, identity))
        return found

    def _new_path(self) -> Path:
        self._made += 1
        return self._source.location / f"file-{self._made}.txt"

    def _rows(self, count: int) -> bytes:
        author, rng = self._scenario.author, self._rng
        fails = (0, 0, 0, 1, author.ALWAYS if self._scenario.fragile else 2)
        self._changes += 1
        return b"".join(b"row %d,%d,%d\n" % (self._changes, index, rng.choice(fails)) for index in range(count))

    def _write(self, path: Path, content: bytes, how: str) -> None:
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(content)
            file.truncate()
        self._stamp(path)
        self._note(path, how)
        if self._source.ready_suffix is not None and all(path != upload.path for upload in self._uploads):
            ready = path.with_name(path.name + self._source.ready_suffix)
            ready.touch()
            self._stamp(ready)

    def _note(self, path: Path, how: str) -> None:
        content = path.read_bytes()
        self._scenario.contents[_checksum(content)] = path.name, content
        self._say(f"folder: {how} {path.name}: {content!r}")

    @contextmanager
    def set_back(self, command: SubmitCommand) -> Iterator[None]:
        """For a while an object lies where it was submitted, as it was."""
        assert command.source_sha256 is not None
        path = Path(command.source_path or "")
        now = path.read_bytes() if path.exists() else None
        _, content = self._scenario.contents[command.source_sha256]
        path.write_bytes(content)
        try:
            yield
        finally:
            if now is None:
                path.unlink()
            else:
                path.write_bytes(now)

    # --- looks -------------------------------------------------------------------------------------------------------

    def _stamp(self, path: Path, *, mtime_ns: int | None = None) -> None:
        """A file changed: it looks different from now on, whatever its size and mtime say."""
        self._changes += 1
        now_ns = self._clock.now_ms() * 1_000_000 + self._changes
        real = os.stat(path).st_ino  # noqa: PTH116 - as the product looks
        known = self._stats.get(real)
        inode = known.inode if known is not None else self._changes
        self._stats[real] = _Stat(inode, now_ns if mtime_ns is None else mtime_ns, now_ns)

    def _look(self, path: str | Path) -> Look:
        stat = os.stat(path)  # noqa: PTH116
        known = self._stats.get(stat.st_ino, _Stat(0, 0, self._clock.now_ms() * 1_000_000))
        return Look(stat.st_size, known.mtime_ns, known.ctime_ns, known.inode)

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Everybody sees the files of the simulation as the simulation says, and names them without its temporary folder."""

        def key_of(identity: ObjectIdentity) -> str:
            return submission_key(replace(identity, path=identity.name))

        swaps: list[tuple[Any, str, Any]] = [
            (looks, "TICK_S", 0.0),  # nobody waits for a clock that stands still
            (Look, "of", staticmethod(self._look)),
            (submissions, "submission_key", key_of),
        ]
        before = [(where, name, vars(where)[name]) for where, name, _ in swaps]
        try:
            for where, name, value in swaps:
                setattr(where, name, value)
            yield
        finally:
            for where, name, value in before:
                setattr(where, name, value)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
