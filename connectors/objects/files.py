"""Files as an outside party: objects that come in, and objects that are published (BEHAVIOUR 4.11, 4.12).

Coming in, an object is identified by its path and content, so that listing it again is the same submission. Going out,
it is written under a temporary name beside its target and appears there complete or not at all; an equal object that
is already there is success, another one is a conflict and stays (DESIGN 7 "Finishing").
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path, PurePosixPath
from types import UnionType
from typing import Final, Literal, Protocol, Self, Union, cast, get_args
from urllib.parse import quote

import msgspec
from pydantic import BaseModel

from schemas.errors import PublicationConflict, StepError, UsageError
from schemas.limits import OPEN_GROUPS_MAX

logger = logging.getLogger(__name__)

HASH_CHUNK_BYTES: Final = 1 << 20
WRITE_BUFFER_BYTES: Final = 1 << 20
SETTLE_DEFAULT_MS: Final = 1_000
"""How long a file must have been left alone before it counts as written."""

TEMPORARY_SUFFIXES: Final = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", ".swp", "~")
"""Names that editors, browsers and copy programs give to what is not finished."""

# --- coming in --------------------------------------------------------------------------------------------------------


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
        """Return the hash of the file as it is, or None."""
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
    """The objects of a folder; a `connectors.connector.Ingress` of `ObjectIdentity`."""

    def __init__(
        self, location: str | Path, include: Sequence[str] = ("*",), *, settle_ms: int = SETTLE_DEFAULT_MS
    ) -> None:
        self._location = Path(location)
        self._include = tuple(include)
        self._settle_ms = settle_ms
        self._cache = HashCache()

    def look(self, now_ms: int) -> Listing:
        """Return what is there now.

        Raises:
            OSError: The location itself is missing or cannot be listed.
        """
        return list_objects(self._location, self._include, now_ms=now_ms, settle_ms=self._settle_ms, cache=self._cache)

    def receive(self, now_ms: int) -> list[ObjectIdentity]:
        """Return the complete objects; the others are logged."""
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
    """Return the path from the root, without `.` and `..`; links are kept, for a mount may move them."""
    return Path(os.path.normpath(Path(path).absolute()))


def _content(path: Path) -> tuple[str, int]:
    """Return a file's sha256 and size, as read."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def submission_key(identity: ObjectIdentity, *, source: str = "filesystem") -> str:
    """Return the object's submission key: `object:<source>:<path>:<sha256>` (BEHAVIOUR 4.12).

    The content is part of it: an object that is listed again is a duplicate, a corrected one is a new submission.
    A blank value becomes `_`; colons and backslashes are escaped, so no two objects share a key.
    """
    values = (source, identity.path, identity.sha256)
    return ":".join(("object", *map(_escaped, values)))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(":", "\\:") if value.strip() else "_"


# --- going out --------------------------------------------------------------------------------------------------------


class PublicationFailed(StepError):
    """The object could not be written; nothing is left of the attempt, and another may succeed."""

    code = "PUBLICATION_FAILED"


class StorageFull(PublicationFailed):
    """The target's file system has no room for the object."""

    code = "STORAGE_FULL"


class ObjectKeyRefused(StepError):
    """The object key leads out of the location, or is no file name."""

    code = "OBJECT_KEY_REFUSED"
    retryable = False


class TooManyOpenGroups(StepError):
    """More output objects are open at a time than `limits.OPEN_GROUPS_MAX` allows."""

    code = "TOO_MANY_OPEN_GROUPS"
    retryable = False


@dataclass(frozen=True, slots=True)
class PublishedObject:
    """An object that is at its target."""

    path: str
    size: int
    """Bytes."""
    sha256: str
    already_there: bool = False
    """An equal object was found at the target: an earlier attempt had published it."""


def object_key(template: str, values: Mapping[str, str]) -> str:
    """Fill an object key template: `{groupKey}.out` with `groupKey` a name gives `name.out`.

    Raises:
        ObjectKeyRefused: The template names a value that is not there, or a value is blank.
    """

    def fill(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None or not value.strip():
            state = "missing" if value is None else "blank"
            msg = f"output.key {template!r}: the value of {match[0]} is {state}; known: {', '.join(sorted(values))}"
            raise ObjectKeyRefused(msg)
        return value

    return re.sub(r"\{([^{}]*)\}", fill, template)


def target_path(location: str | Path, key: str) -> Path:
    """Return where an object belongs.

    Raises:
        ObjectKeyRefused: The key is blank, absolute, leads out of the location (through a link too), or would be
            taken for an unfinished file.
    """
    root = absolute(location)
    parts = PurePosixPath(key).parts
    if not key.strip() or "\0" in key or key.endswith("/") or not parts:
        msg = f"object key {key!r} is no file name"
        raise ObjectKeyRefused(msg)
    target = root.joinpath(*parts)
    if key.startswith("/") or ".." in parts or not target.parent.resolve().is_relative_to(root.resolve()):
        msg = f"object key {key!r} leads out of {root}: change output.key or the value it uses"
        raise ObjectKeyRefused(msg)
    if _TEMPORARY.fullmatch(target.name):
        msg = f"object key {key!r} is reserved for unfinished objects: change output.key"
        raise ObjectKeyRefused(msg)
    return target


class ObjectPublication:
    """One object on its way out: `write` its bytes in order, then `commit` or `abort`.

    The temporary name carries instance and attempt, so that an operator sees whose it is and `remove_stale` finds it,
    and a drawn part, so that a process that was thought dead never writes into its successor's file.

    As a context manager it aborts what was not committed.
    """

    def __init__(self, location: str | Path, object_key: str, *, instance: str, attempt: int) -> None:
        self._target = target_path(location, object_key)
        self._temporary = self._target.with_name(_temporary_name(instance, attempt))
        self._digest = hashlib.sha256()
        self._size = 0
        self._open = True
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("xb", buffering=WRITE_BUFFER_BYTES)
        except OSError as error:
            raise self._failed(error) from error

    def write(self, chunk: bytes) -> None:
        """Append bytes.

        Raises:
            StorageFull: No room; the temporary file is gone.
            PublicationFailed: Another fault of the file system; likewise.
        """
        try:
            self._file.write(chunk)
        except OSError as error:
            self.abort()
            raise self._failed(error) from error
        self._digest.update(chunk)
        self._size += len(chunk)

    def commit(self) -> PublishedObject:
        """Make the bytes durable and let them appear at the target, all at once.

        Returns:
            The object. If an equal one is there already, that is success too.

        Raises:
            PublicationConflict: Another object is at the target; it stays as it is.
            PublicationFailed: A fault of the file system; nothing appears.
        """
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            already_there = not _appear(self._temporary, self._target)
        except OSError as error:
            self.abort()
            raise self._failed(error) from error
        sha256 = self._digest.hexdigest()
        try:
            if already_there:
                self._compare(sha256)
        finally:
            self.abort()
        return PublishedObject(str(self._target), self._size, sha256, already_there)

    def _compare(self, sha256: str) -> None:
        try:
            there = identify(self._target)
        except OSError as error:
            raise self._failed(error) from error
        if there.sha256 != sha256:
            msg = (
                f"{self._target} is there already with other content: {there.size:,} bytes, sha256 {there.sha256[:12]}..., "
                f"instead of {self._size:,} bytes, sha256 {sha256[:12]}...; move it away and submit the input once more, under another --key"
            )
            raise PublicationConflict(msg)

    def abort(self) -> None:
        """Leave nothing behind; harmless after a commit and when repeated."""
        if not self._open:
            return
        self._open = False
        try:
            self._file.close()
        except OSError:  # closing flushes: on a full disk that fails again, and the bytes are not wanted
            logger.debug("unfinished object did not close: %s", self._temporary)
        self._temporary.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> PublicationFailed:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return StorageFull(
                f"no room for {self._target} after {self._size:,} bytes: free space on its file system; "
                "the unfinished file was removed"
            )
        return PublicationFailed(f"cannot publish {self._target}: {error.strerror or error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.abort()


class ObjectPublications:
    """The output objects of one execution: one a group key, a bounded number open at a time (BEHAVIOUR 188)."""

    def __init__(
        self, location: str | Path, *, instance: str, attempt: int, open_groups_max: int = OPEN_GROUPS_MAX
    ) -> None:
        self._location = Path(location)
        self._instance = instance
        self._attempt = attempt
        self._open_groups_max = open_groups_max
        self._open: dict[str, ObjectPublication] = {}

    def publication(self, key: str) -> ObjectPublication:
        """Return the open object with this key; open it at first.

        Raises:
            TooManyOpenGroups: One more would be open than the limit allows.
            ObjectKeyRefused: See `target_path`.
            PublicationFailed: The temporary file cannot be made.
        """
        found = self._open.get(key)
        if found is None:
            if len(self._open) >= self._open_groups_max:
                msg = (
                    f"output.groupBy makes more than {self._open_groups_max} objects at a time (OPEN_GROUPS_MAX); "
                    "group by a field with fewer values"
                )
                raise TooManyOpenGroups(msg)
            found = ObjectPublication(self._location, key, instance=self._instance, attempt=self._attempt)
            self._open[key] = found
        return found

    def commit(self) -> list[PublishedObject]:
        """Publish every object, in the order they were opened; after a failure the rest is aborted.

        Those that had appeared before a failure stay: the next attempt finds them equal.
        """
        try:
            return [publication.commit() for publication in self._open.values()]
        finally:
            self.abort()

    def abort(self) -> None:
        """Leave nothing unfinished behind."""
        for publication in self._open.values():
            publication.abort()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.abort()


_TEMPORARY = re.compile(r"\.kawait-publish-(?P<attempt>\d+)-(?P<instance>.+)-[0-9a-f]{16}\.tmp")
_INSTANCE_CHARS_MAX: Final = 120


def _temporary_name(instance: str, attempt: int) -> str:
    return f".kawait-publish-{attempt}-{_instance_part(instance)}-{secrets.token_hex(8)}.tmp"


def _instance_part(instance: str) -> str:
    """Return the instance's name as part of a file name: no slash, and short enough for any file system."""
    part = quote(instance, safe="") or "_"
    return part if len(part) <= _INSTANCE_CHARS_MAX else hashlib.sha256(instance.encode()).hexdigest()


def remove_stale(location: str | Path, *, instance: str) -> list[str]:
    """Remove what earlier processes of this instance left unfinished; call it before the instance publishes anything.

    Returns:
        The paths of the removed files.
    """
    removed = []
    part = _instance_part(instance)
    for path in absolute(location).rglob(".kawait-publish-*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match is not None and match["instance"] == part:
            path.unlink(missing_ok=True)
            removed.append(str(path))
    return sorted(removed)


# File systems without hard links say so in various ways.
_NO_HARD_LINKS: Final = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
)


def _appear(temporary: Path, target: Path) -> bool:
    """Let the file appear at the target atomically; False when something is there, which is never replaced."""
    try:
        os.link(temporary, target)  # unlike a rename, fails when the target exists
        temporary.unlink(missing_ok=True)  # a successor that cleans up may have come first
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if target.exists():
            return False
        temporary.rename(target)
    _fsync_folder(target.parent)
    return True


def _fsync_folder(folder: Path) -> None:
    """Make the new name durable too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)


# --- row formats ------------------------------------------------------------------------------------------------------


class RowFormat(Protocol):
    """How the rows of an object are written; rows arrive as the JSON of the step's output."""

    @property
    def header(self) -> bytes:
        """What the object begins with; may be empty."""

    def encode(self, rows: Iterable[bytes]) -> bytes:
        """Return the bytes of a chunk of rows."""


class JsonLines:
    """One JSON value a line, as the step made it."""

    header = b""

    def encode(self, rows: Iterable[bytes]) -> bytes:
        """Return the rows, each ended by a line feed; JSON itself never holds one outside its escapes."""
        return b"".join(row + b"\n" for row in rows)


class CsvRows:
    """RFC 4180: a column for each field of the model, in its order; a header; CRLF; quotes where they are needed.

    Numbers and decimals keep the digits they have. A text that a spreadsheet would run as a formula gets a leading
    apostrophe; only fields that are declared as text do, so a negative amount stays a number (CASES 115).

    Raises:
        UsageError: The model has a field that is no cell (a list, a mapping, a model).
    """

    def __init__(self, model: type[BaseModel]) -> None:
        fields = model.model_fields
        self._names = tuple(
            info.serialization_alias or info.alias or name if model.model_config.get("serialize_by_alias") else name
            for name, info in fields.items()
        )
        nested = [name for name, info in fields.items() if any(map(_is_nested, _arms(info.annotation)))]
        if nested:
            msg = f"output.format csv: {model.__name__} has fields that are no cells: {', '.join(nested)}; use format json"
            raise UsageError(msg)
        self._guards: tuple[tuple[str, Callable[[object], object]], ...] = tuple(
            (name, _guarded if str in _arms(info.annotation) else _as_cell)
            for name, info in zip(self._names, fields.values(), strict=True)
        )
        self.header = _csv_line(self._names).encode()

    def encode(self, rows: Iterable[bytes]) -> bytes:
        """Return the CSV of rows that are JSON objects of the model."""
        guards = self._guards
        lines = [
            _csv_line(
                [
                    # Most cells are texts that begin with a letter or digit: no guard changes those.
                    value if type(value := row.get(name)) is str and value[:1].isalnum() else cell(value)
                    for name, cell in guards
                ]
            )
            for row in map(_decode_row, rows)
        ]
        return "".join(lines).encode()


_decode_row = msgspec.json.Decoder(dict[str, object], float_hook=str).decode
"""JSON object to cells; a float stays the text it is, so that no digit is lost or made up."""


def _csv_line(cells: Sequence[object]) -> str:
    """Return one row with its end. The csv module looks at each character twice, so it gets those rows only that need it."""
    if len(cells) > 1:
        with contextlib.suppress(TypeError):  # a cell that is no text
            line = ",".join(cast("Sequence[str]", cells))
            if line.count(",") == len(cells) - 1 and not ('"' in line or "\r" in line or "\n" in line):
                return line + "\r\n"
    text = StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue()


def _arms(annotation: object) -> tuple[object, ...]:
    """Return the types that an annotation names: its own, or those of its union, without `Annotated` around them."""
    if hasattr(annotation, "__metadata__"):
        return _arms(get_args(annotation)[0])
    origin = getattr(annotation, "__origin__", None)
    if isinstance(annotation, UnionType) or origin is Union:
        return tuple(arm for part in get_args(annotation) for arm in _arms(part))
    if origin is Literal:
        return tuple({type(value) for value in get_args(annotation)})
    return (annotation if origin is None else origin,)


def _is_nested(arm: object) -> bool:
    return isinstance(arm, type) and issubclass(arm, (list, tuple, set, frozenset, dict, BaseModel))


def _as_cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


# What a spreadsheet skips before it looks for a formula, and what then begins one; the wide forms count in East Asia.
_FORMULA = re.compile(r"[\s\x00-\x1f\x7f\u200b\ufeff]*[=+\-@＝＋－＠]")


def _guarded(value: object) -> object:
    """Return a text cell that no spreadsheet runs."""
    if isinstance(value, str):
        return value if value[:1].isalnum() or _FORMULA.match(value) is None else f"'{value}"
    return _as_cell(value)
