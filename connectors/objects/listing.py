"""Listing: which objects a place shows, each with the identity of its content, once it is whole (DECISIONS 17).

Whole is what two looks at least `settle` apart show the same, and what ends with a line end; an object without one is taken for cut, and waits
ten times as long. A sender may mark the end instead: with a ready suffix, `a.csv` is whole once `a.csv.done` lies beside it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from connectors.objects.looks import TICK_S, Look, read_content, wait_tick
from connectors.objects.moving import Moving

logger = logging.getLogger(__name__)

CUT_FACTOR: Final = 10
"""An object without a line end at its end is left alone so many times as long."""

IDENTIFY_TRIES: Final = 3

TEMPORARY_SUFFIXES: Final = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", ".swp", "~")
"""Names that editors, browsers and copy programs give to what is not finished."""

LINE_ENDS: Final = (b"\n", b"\r", b"\n\0", b"\r\0")
"""What a whole text ends with, in UTF-8 and UTF-16."""


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """One object: where it is and what is in it."""

    name: str
    """Path below the listed location, with forward slashes; the bare file name when there is no location."""
    path: str
    """Absolute path; symlinks are not followed, so a mount that moves them does not change it."""
    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal digest of the content."""
    look: Look | None = field(default=None, compare=False)
    """The object when it was read."""


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object that is there and cannot be read."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What one look at a location found."""

    objects: list[ObjectIdentity] = field(default_factory=list)
    """Complete objects, in order of their names."""
    unreadable: list[UnreadableObject] = field(default_factory=list)
    """Objects that need somebody's attention; the others are not held up by them."""
    unsettled: list[str] = field(default_factory=list)
    """Paths that may still be written to; a later look will find them complete."""
    outdated: list[str] = field(default_factory=list)
    """Paths of objects whose last change lies further back than anybody remembers what was done."""
    passed_over: list[str] = field(default_factory=list)
    """Names that no pattern includes."""
    unready: list[str] = field(default_factory=list)
    """Paths of objects that have waited for their ready file for long."""
    moving: list[Moving] = field(default_factory=list)
    """Objects that somebody began to move away."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """Since when an object looks as it does."""

    look: Look
    since_ms: int


@dataclass(slots=True)
class _Names:
    """The names of a place, by what they are."""

    included: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    moving: list[Moving] = field(default_factory=list)
    unreadable: list[UnreadableObject] = field(default_factory=list)


class FilesystemSource:
    """The objects of a folder, and what earlier looks at it have shown.

    Args:
        location: The folder.
        include: Shell patterns, case-sensitive. One without a slash matches files of the folder itself; one with a slash
            matches paths below it, `**/` any depth.
        settle_ms: How far two equal looks lie apart.
        ready_suffix: What a ready file has behind the name of its object; None: there are no ready files.
        skipped: Folders below the location that are not looked into.
    """

    def __init__(
        self,
        location: str | Path,
        include: Sequence[str] = ("*",),
        *,
        settle_ms: int,
        ready_suffix: str | None = None,
        skipped: Iterable[Path] = (),
    ) -> None:
        self._root = absolute(location)
        self._include = tuple(include)
        self._settle_ms = max(settle_ms, int(TICK_S * 1_000))
        self._ready_suffix = ready_suffix
        self._skipped = frozenset(map(absolute, skipped))
        self._seen: dict[str, _Seen] = {}
        self._hashes: dict[str, tuple[Look, str]] = {}
        """Of objects as they looked, so that an unchanged one is read once."""
        self._looked_at_s = 0.0

    def look(self, now_ms: int, *, unchanged_since_ns: int = 0) -> Listing:
        """What is there now.

        Args:
            now_ms: The time, on a clock that never jumps: looks are compared with each other, not with the times of files.
            unchanged_since_ns: An object whose last change is older is outdated.

        Raises:
            OSError: The location itself is missing or cannot be listed; what was seen before is still known.
        """
        names = self._names()
        listing = Listing(passed_over=names.passed_over, moving=names.moving, unreadable=names.unreadable)
        seen = dict(self._looks(sorted(names.included), listing, now_ms))
        self._seen = seen
        self._hashes = {name: known for name, known in self._hashes.items() if name in seen}
        self._looked_at_s = time.monotonic()
        for name, found in seen.items():
            try:
                self._judge(name, found, listing, now_ms, unchanged_since_ns)
            except FileNotFoundError:
                listing.unsettled.append(str(self._root / name))
            except OSError as error:
                listing.unreadable.append(_unreadable(self._root / name, error))
        return listing

    def close(self) -> None:
        """Nothing is held."""

    # --- looks -------------------------------------------------------------------------------------------------------------------------

    def _looks(self, names: Iterable[str], listing: Listing, now_ms: int) -> Iterator[tuple[str, _Seen]]:
        for name in names:
            path = self._root / name
            try:
                str(path).encode()
                look = Look.of(path)
            except UnicodeEncodeError:
                listing.unreadable.append(UnreadableObject(ascii(str(path)), "its name is not UTF-8"))
            except FileNotFoundError:
                if path.is_symlink():
                    listing.unreadable.append(UnreadableObject(str(path), "a link that leads nowhere"))
            except OSError as error:
                listing.unreadable.append(_unreadable(path, error))
            else:
                before = self._seen.get(name)
                yield name, before if before is not None and before.look.same(look) else _Seen(look, now_ms)

    def _judge(self, name: str, seen: _Seen, listing: Listing, now_ms: int, unchanged_since_ns: int) -> None:
        path = self._root / name
        if seen.look.ctime_ns < unchanged_since_ns:
            listing.outdated.append(str(path))
            return
        if self._waits_for_ready(path):
            if now_ms - seen.since_ms >= CUT_FACTOR * self._settle_ms:
                listing.unready.append(str(path))
            listing.unsettled.append(str(path))
            return
        sha256 = self._content(name, path, seen.look) if self._is_whole(path, seen, now_ms) else None
        if sha256 is None:
            listing.unsettled.append(str(path))
        else:
            listing.objects.append(ObjectIdentity(name, str(path), seen.look.size, sha256, seen.look))

    def _ready_file(self, path: Path) -> Path | None:
        return None if self._ready_suffix is None else path.with_name(path.name + self._ready_suffix)

    def _waits_for_ready(self, path: Path) -> bool:
        ready = self._ready_file(path)
        return ready is not None and not ready.exists()

    def _is_whole(self, path: Path, seen: _Seen, now_ms: int) -> bool:
        ready = self._ready_file(path)
        if ready is not None and Look.of(ready).mtime_ns >= seen.look.ctime_ns:
            return True  # else the object changed after its ready file, which may speak of what lay there before
        settled_ms = now_ms - seen.since_ms
        if settled_ms < self._settle_ms:
            return False
        return settled_ms >= CUT_FACTOR * self._settle_ms or _ends_a_line(path)

    def _content(self, name: str, path: Path, look: Look) -> str | None:
        """The checksum of an object that looks like this; None when it changes meanwhile."""
        known = self._hashes.get(name)
        if known is not None and known[0].same(look):
            return known[1]
        wait_tick(self._looked_at_s)
        sha256, size = read_content(path)
        if size != look.size or not Look.of(path).same(look):
            return None
        self._hashes[name] = (look, sha256)
        return sha256

    # --- names -------------------------------------------------------------------------------------------------------------------------

    def _names(self) -> _Names:
        """The names below the root, without folders, special files, and hidden and temporary names."""
        found = _Names()
        deep = any("/" in pattern for pattern in self._include)
        folders = [self._root]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    folders += self._sort_all(folder, entries, found, deep=deep)
            except OSError as error:
                if folder == self._root:
                    raise
                found.unreadable.append(_unreadable(folder, error))
        return found

    def _sort_all(self, folder: Path, entries: Iterable[os.DirEntry[str]], found: _Names, *, deep: bool) -> list[Path]:
        """Sort in what a folder holds; gives the folders below it that are to be looked into."""
        below: list[Path] = []
        for entry in entries:
            path = folder / entry.name
            if entry.is_dir():
                # A linked folder may lead back to where we are.
                if deep and not entry.is_symlink() and not _is_unfinished(entry.name) and path not in self._skipped:
                    below.append(path)
            elif not _is_special(entry):
                self._sort_in(path.relative_to(self._root).as_posix(), path, found)
        return below

    def _sort_in(self, name: str, path: Path, found: _Names) -> None:
        moving = Moving.of(path)
        if moving is not None:
            found.moving.append(moving)
        elif self._is_ready_file(path) or _is_unfinished(path.name):
            pass
        elif any(_matches(name, pattern) for pattern in self._include):
            found.included.append(name)
        else:
            found.passed_over.append(name)

    def _is_ready_file(self, path: Path) -> bool:
        return self._ready_suffix is not None and path.name.endswith(self._ready_suffix)


def _unreadable(path: Path, error: OSError) -> UnreadableObject:
    return UnreadableObject(str(path), error.strerror or str(error))


def _ends_a_line(path: Path) -> bool:
    """Whether the last record has its end; an empty object has none."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2))
        return file.read().endswith(LINE_ENDS)


def _is_special(entry: os.DirEntry[str]) -> bool:
    # Reading a pipe or device would wait for ever; a broken link is no file either, but somebody should hear of it.
    return not entry.is_file() and not entry.is_symlink()


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") or name.casefold().endswith(TEMPORARY_SUFFIXES)


def _matches(name: str, pattern: str) -> bool:
    if "/" not in pattern:
        return "/" not in name and fnmatchcase(name, pattern)
    if pattern.startswith("**/"):
        return any(_matches_parts(part, pattern[3:]) for part in _tails(name))
    return _matches_parts(name, pattern)


def _matches_parts(name: str, pattern: str) -> bool:
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _tails(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def identify(path: str | Path, *, name: str | None = None) -> ObjectIdentity:
    """Identify one file by reading it.

    Args:
        path: The file.
        name: What to call it; default: its file name.

    Raises:
        OSError: It is missing or cannot be read.
    """
    file, tries = absolute(path), 0
    while True:
        look, tries = Look.of(file), tries + 1
        wait_tick(time.monotonic())
        sha256, size = read_content(file)
        # One that changes all the time is told from its other states by whoever reads it.
        if tries == IDENTIFY_TRIES or Look.of(file).same(look):
            return ObjectIdentity(file.name if name is None else name, str(file), size, sha256, look)


def absolute(path: str | Path) -> Path:
    """The path from the root, without `.` and `..`; links are kept, for a mount may move them."""
    return Path(os.path.normpath(Path(path).absolute()))


def submission_key(identity: ObjectIdentity, *, source: str = "filesystem") -> str:
    """The object's submission key: `object:<source>:<path>:<sha256>` (BEHAVIOUR 4.12).

    The content is part of it: an object that is listed again is a duplicate, a corrected one is a new submission.
    A blank value becomes `_`; colons and backslashes are escaped, so no two objects share a key.
    """
    values = (source, identity.path, identity.sha256)
    return ":".join(("object", *map(_escaped, values)))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(":", "\\:") if value.strip() else "_"
