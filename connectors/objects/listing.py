"""Listing: which objects a place shows, each with the identity of its content."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Self

logger = logging.getLogger(__name__)

HASH_CHUNK_BYTES: Final = 1 << 20
SETTLE_DEFAULT_MS: Final = 1_000
"""How long a file must have been left alone before it counts as written."""

TEMPORARY_SUFFIXES: Final = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", ".swp", "~")
"""Names that editors, browsers and copy programs give to what is not finished."""


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
    """Paths that are still being written; a later look will find them complete."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What tells, without reading it, that a file's content has not changed."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        stat = path.stat()
        return cls(stat.st_size, stat.st_mtime_ns)


class HashCache:
    """Content hashes by path, size and modification time, so that an unchanged file is read once.

    Holds one entry for each file of the last look.
    """

    def __init__(self) -> None:
        self._hashes: dict[str, tuple[_Stamp, str]] = {}

    def get(self, path: str, stamp: _Stamp) -> str | None:
        """The hash of the file as it is, or None."""
        found = self._hashes.get(path)
        return found[1] if found is not None and found[0] == stamp else None

    def put(self, path: str, stamp: _Stamp, sha256: str) -> None:
        """Remember a file's hash."""
        self._hashes[path] = (stamp, sha256)

    def keep(self, paths: Iterable[str]) -> None:
        """Forget every file but these."""
        kept = set(paths)
        self._hashes = {path: entry for path, entry in self._hashes.items() if path in kept}


class FilesystemSource:
    """The objects of a folder."""

    def __init__(
        self, location: str | Path, include: Sequence[str] = ("*",), *, settle_ms: int = SETTLE_DEFAULT_MS
    ) -> None:
        self._location = Path(location)
        self._include = tuple(include)
        self._settle_ms = settle_ms
        self._cache = HashCache()

    def look(self, now_ms: int) -> Listing:
        """What is there now.

        Raises:
            OSError: The location itself is missing or cannot be listed.
        """
        return list_objects(self._location, self._include, now_ms=now_ms, settle_ms=self._settle_ms, cache=self._cache)

    def receive(self, now_ms: int) -> list[ObjectIdentity]:
        """The complete objects; the others are logged."""
        listing = self.look(now_ms)
        for unreadable in listing.unreadable:
            logger.warning("object cannot be read: %s: %s", unreadable.path, unreadable.reason)
        return listing.objects

    def close(self) -> None:
        """Nothing is held."""


def list_objects(
    location: str | Path,
    include: Sequence[str] = ("*",),
    *,
    now_ms: int,
    settle_ms: int = SETTLE_DEFAULT_MS,
    cache: HashCache | None = None,
) -> Listing:
    """Look at a folder and identify its complete objects.

    Args:
        location: The folder.
        include: Shell patterns, case-sensitive. One without a slash matches files of the folder itself; one with a
            slash matches paths below it, `**/` any depth.
        now_ms: The time, epoch milliseconds.
        settle_ms: A file modified more recently is left for the next look.
        cache: Hashes of earlier looks.

    Raises:
        OSError: The location is missing or cannot be listed.
    """
    root, listing = absolute(location), Listing()
    cache = HashCache() if cache is None else cache
    seen: list[str] = []
    for name in sorted(_names(root, include)):
        path = root / name
        seen.append(str(path))
        try:
            str(path).encode()
            found = _settled(name, path, now_ms, settle_ms, cache)
        except UnicodeEncodeError:
            listing.unreadable.append(UnreadableObject(ascii(str(path)), "its name is not UTF-8"))
        except FileNotFoundError:
            if path.is_symlink():
                listing.unreadable.append(UnreadableObject(str(path), "a link that leads nowhere"))
        except OSError as error:
            listing.unreadable.append(UnreadableObject(str(path), error.strerror or str(error)))
        else:
            if found is None:
                listing.unsettled.append(str(path))
            else:
                listing.objects.append(found)
    cache.keep(seen)
    return listing


def _settled(name: str, path: Path, now_ms: int, settle_ms: int, cache: HashCache) -> ObjectIdentity | None:
    """Identify a file that has been left alone for the settle time; None when it has not, or changes meanwhile."""
    stamp = _Stamp.of(path)
    # A time far in the future is a copied or skewed stamp, not a writer at work: waiting for it would never end.
    if abs(now_ms - stamp.mtime_ns // 1_000_000) < settle_ms:
        return None
    sha256 = cache.get(str(path), stamp)
    if sha256 is None:
        sha256, size = _content(path)
        if size != stamp.size or _Stamp.of(path) != stamp:
            return None
        cache.put(str(path), stamp, sha256)
    return ObjectIdentity(name, str(path), stamp.size, sha256)


def _names(root: Path, include: Sequence[str]) -> Iterator[str]:
    """Yield the names below the root that the patterns include, without folders, hidden and temporary names."""
    deep = any("/" in pattern for pattern in include)
    folders = [root]
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_unfinished(entry.name):
                    continue
                if entry.is_dir():
                    # A linked folder may lead back to where we are.
                    if deep and not entry.is_symlink():
                        folders.append(folder / entry.name)
                elif not _is_special(entry):
                    name = (folder / entry.name).relative_to(root).as_posix()
                    if any(_matches(name, pattern) for pattern in include):
                        yield name


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
    file = absolute(path)
    sha256, size = _content(file)
    return ObjectIdentity(file.name if name is None else name, str(file), size, sha256)


def absolute(path: str | Path) -> Path:
    """The path from the root, without `.` and `..`; links are kept, for a mount may move them."""
    return Path(os.path.normpath(Path(path).absolute()))


def _content(path: Path) -> tuple[str, int]:
    """A file's sha256 and size, as read."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def submission_key(identity: ObjectIdentity, *, source: str = "filesystem") -> str:
    """The object's submission key: `object:<source>:<path>:<sha256>` (BEHAVIOUR 4.12).

    The content is part of it: an object that is listed again is a duplicate, a corrected one is a new submission.
    A blank value becomes `_`; colons and backslashes are escaped, so no two objects share a key.
    """
    values = (source, identity.path, identity.sha256)
    return ":".join(("object", *map(_escaped, values)))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(":", "\\:") if value.strip() else "_"
