"""Publication: output objects that appear whole, once, under their final name."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Self
from urllib.parse import quote

from connectors.objects.appearing import appear
from connectors.objects.listing import (
    absolute,
    identify,
    logger,
)
from schemas.errors import PublicationConflict, StepError
from schemas.limits import OPEN_GROUPS_MAX

WRITE_BUFFER_BYTES: Final = 1 << 20


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


def name_part(value: str) -> str:
    """A value as part of a file name: what would start a folder, or is no character of a name, is escaped as in a URL."""
    return re.sub(r"[/\\%\x00-\x1f\x7f]", lambda match: f"%{ord(match[0]):02X}", value)


NAME_BYTES_MAX: Final = 255
"""Longest name of a file on common file systems; a publication's own temporary names are shorter."""


def target_path(location: str | Path, key: str) -> Path:
    """Where an object belongs.

    Raises:
        ObjectKeyRefused: The key is blank, absolute, leads out of the location (through a link too), is too long, or would
            be taken for an unfinished file.
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
    if len(os.fsencode(target.name)) > NAME_BYTES_MAX:
        msg = f"object key {key[:80]!r}... has {len(os.fsencode(target.name))} bytes; a file name has at most {NAME_BYTES_MAX}: change output.key"
        raise ObjectKeyRefused(msg)
    if _TEMPORARY.fullmatch(target.name):
        msg = f"object key {key!r} is reserved for unfinished objects: change output.key"
        raise ObjectKeyRefused(msg)
    return target


def try_place(location: str | Path, object_key: str | None, *, instance: str) -> None:
    """Find out, before anything is made, whether an object can be published: a file is made beside its target, and removed.

    Args:
        location: Where objects belong.
        object_key: Of the object; None while it is not known: then only the location is tried.
        instance: As for a publication.

    Raises:
        ObjectKeyRefused: See `target_path`.
        PublicationConflict: Something is at the target already.
        PublicationFailed, StorageFull: No file can be made there.
    """
    if object_key is not None and os.path.lexists(target := target_path(location, object_key)):
        msg = f"{target} is there already; nothing was asked: move it away and submit the input once more, under another --key"
        raise PublicationConflict(msg)
    with ObjectPublication(location, object_key or "object", instance=instance, attempt=0) as trial:
        trial.write(b"-")
        trial.flush()


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

    def flush(self) -> None:
        """Give the bytes to the file system.

        Raises:
            StorageFull, PublicationFailed: As `write`.
        """
        try:
            self._file.flush()
        except OSError as error:
            self.abort()
            raise self._failed(error) from error

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
            already_there = not appear(self._temporary, self._target)
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
        """The open object with this key; open it at first.

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
    """The instance's name as part of a file name: no slash, and short enough for any file system."""
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
