"""Moving objects away once their execution has ended, so that none is lost and none is taken for another (DECISIONS 19).

    a.csv  ->  .a.csv.<executionId>.moving  ->  the same object still?  yes: to its place, or deleted
                                                                        no: back under its name, as a new one

The first step takes the name away, so what is compared is what is moved. `.moving` is the last to go: whoever looks next finishes what a
process that was killed left behind (`.failed.moving`: on its way to the place of failed ones). What is there is never overwritten.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from connectors.objects.appearing import appear
from connectors.objects.looks import Look, read_content

_MOVING: Final = re.compile(
    r"\.(?P<name>.+)\.(?P<execution>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?P<failed>\.failed)?\.moving",
    re.DOTALL,
)


class ObjectChanged(Exception):
    """What lies there is not what was looked at; it is under its name again, and a later look finds it."""


class NameTaken(Exception):
    """What was taken away is another object, and its name is taken meanwhile: it stays under its moving name."""


@dataclass(frozen=True, slots=True)
class Moving:
    """An object that is on its way."""

    path: Path
    """Where it is now."""
    name: str
    """The file name that it had."""
    execution_id: str
    failed: bool

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """What a file's name says about its way; None: it is on none."""
        found = _MOVING.fullmatch(path.name)
        return None if found is None else cls(path, found["name"], found["execution"], found["failed"] is not None)

    @classmethod
    def begin(cls, original: Path, execution_id: str, *, failed: bool) -> Self:
        """The way of an object that is still under its name."""
        hidden = f".{original.name}.{execution_id}{'.failed' if failed else ''}.moving"
        return cls(original.with_name(hidden), original.name, execution_id, failed)

    @property
    def original(self) -> Path:
        """Where it was."""
        return self.path.with_name(self.name)


class Mover:
    """Moves the objects of one location.

    Args:
        location: The folder they are in.
        ready_suffix: As `connectors.objects.listing.FilesystemSource` has it; a ready file goes with its object.
        note: Called with execution id and new path (empty: deleted) before the last trace of the move goes.
    """

    def __init__(self, location: Path, ready_suffix: str | None, note: Callable[[str, str], None]) -> None:
        self._location = location
        self._ready_suffix = ready_suffix
        self._note = note

    def take_away(self, path: Path, look: Look, execution_id: str, place: Path | None, *, failed: bool) -> None:
        """Move an object to a place, or delete it; that it is gone already is success.

        Raises:
            ObjectChanged: It is not the one that was looked at.
            NameTaken: See there.
            OSError: It cannot be moved; what is begun is finished by a later look.
        """
        moving = Moving.begin(path, execution_id, failed=failed)
        try:
            if not Look.of(path).same(look):
                raise ObjectChanged
            if (ready := self._ready_of(path)) is not None and ready.exists():
                ready.rename(Moving.begin(ready, execution_id, failed=failed).path)
            path.rename(moving.path)
        except FileNotFoundError:
            self._finish_ready(moving, place)
            return
        if not Look.of(moving.path).same_renamed(look):
            self.put_back(moving)
            raise ObjectChanged
        self.finish(moving, place)

    def finish(self, moving: Moving, place: Path | None) -> None:
        """Bring an object that is on its way to its place, or delete it.

        Raises:
            OSError: It cannot be moved.
        """
        try:
            target = self._placed(moving, place) if place is not None else ""
        except FileNotFoundError:
            if moving.path.exists():
                raise  # else somebody was faster
        else:
            self._note(moving.execution_id, target)
        self._finish_ready(moving, place)
        moving.path.unlink(missing_ok=True)

    def put_back(self, moving: Moving) -> None:
        """Let an object have its name again.

        Raises:
            NameTaken: Another one has it.
        """
        if not _appear(moving.path, moving.original):
            raise NameTaken
        moving.path.unlink(missing_ok=True)

    def is_ready_file(self, moving: Moving) -> bool:
        """Whether it is no object, but the ready file of one."""
        return self._ready_suffix is not None and moving.name.endswith(self._ready_suffix)

    def finish_lonely_ready(self, moving: Moving, place: Path | None) -> None:
        """A ready file that is on its way: back, when its object is not; else after it.

        Raises:
            OSError: It cannot be moved.
        """
        assert self._ready_suffix is not None
        owner = moving.original.with_name(moving.name.removesuffix(self._ready_suffix))
        on_its_way = Moving.begin(owner, moving.execution_id, failed=moving.failed)
        if on_its_way.path.exists():
            return  # it goes together with its object
        if owner.exists():
            self.put_back(moving)
        else:
            self._finish_ready(on_its_way, place)

    # --- places ------------------------------------------------------------------------------------------------------------------------

    def _placed(self, moving: Moving, place: Path) -> str:
        """Let it appear at its place too; gives the path there."""
        target = place / moving.original.relative_to(self._location)
        target.parent.mkdir(parents=True, exist_ok=True)
        for candidate in (target, target.with_name(f"{target.name}.{moving.execution_id}")):
            if _appear(moving.path, candidate) or _are_equal(moving.path, candidate):
                return str(candidate)
        raise FileExistsError(errno.EEXIST, "other content is there under both names", str(target))

    def _ready_of(self, path: Path) -> Path | None:
        return None if self._ready_suffix is None else path.with_name(path.name + self._ready_suffix)

    def _finish_ready(self, moving: Moving, place: Path | None) -> None:
        ready = self._ready_of(moving.original)
        if ready is None:
            return
        hidden = Moving.begin(ready, moving.execution_id, failed=moving.failed)
        if place is not None and hidden.path.exists():
            self._placed(hidden, place)
        hidden.path.unlink(missing_ok=True)


def _appear(source: Path, target: Path) -> bool:
    """Let a file appear under a second name, of another file system too; False when something is there already."""
    try:
        return appear(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return _copy(source, target)


def _copy(source: Path, target: Path) -> bool:
    """The same across file systems: under a temporary name first."""
    temporary = target.with_name(f".kawait-move-{secrets.token_hex(8)}.tmp")
    try:
        with source.open("rb") as read, temporary.open("xb") as written:
            shutil.copyfileobj(read, written, 1 << 20)
            written.flush()
            os.fsync(written.fileno())
        shutil.copystat(source, temporary)
        return appear(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _are_equal(one: Path, other: Path) -> bool:
    return one.samefile(other) or read_content(one) == read_content(other)
