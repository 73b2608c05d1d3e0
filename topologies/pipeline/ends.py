"""The two ends of a pipeline: where its inputs come from, and where its outputs go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Final, Literal

from topologies.pipeline.payloads import PayloadType

SETTLE_DEFAULT_MS = 10_000
"""`input.settle` when the file does not say."""

After = Literal["keep", "move", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSource:
    """One execution an object of a folder or bucket.

    Attributes:
        location: Absolute.
        include: Shell patterns of names; an object matching one of them is read.
        poll_ms: Wait between two listings.
        settle_ms: How far two looks that show the same lie apart before an object counts as whole.
        ready_suffix: What the name of a ready file has behind that of its object; None: there are no ready files.
        after: What becomes of an object whose execution has ended.
        done, failed: Where it is moved, absolute: after it succeeded, and after it did not.
    """

    provider: str
    location: Path
    include: tuple[str, ...]
    poll_ms: int
    settle_ms: int = SETTLE_DEFAULT_MS
    ready_suffix: str | None = None
    after: After = "keep"
    done: Path | None = None
    failed: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """One execution a record.

    Attributes:
        key: Template of the submission key; None: topic, partition and offset.
    """

    topic: str
    type: PayloadType
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSource:
    """One execution a publication of another pipeline."""

    publication: str


ObjectFormat = Literal["csv", "jsonl"]
OBJECT_FORMATS: Final[tuple[ObjectFormat, ...]] = ("csv", "jsonl")

OBJECT_KEY_FIELDS: Final = ("groupKey", "inputName", "inputStem", "executionId", "date")
"""What an object's name may be made of: the group, the input object's name with and without its last suffix, the execution, and the UTC day
of its submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOutput:
    """Outputs gathered into objects.

    Attributes:
        location: Absolute.
        key: Template of the object's name, of `OBJECT_KEY_FIELDS`.
        group_by: Field of the output that names the group; None: the input object's name.
    """

    provider: str
    location: Path
    key: str
    format: ObjectFormat
    group_by: str | None

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The placeholders of the key."""
        return template_fields(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutput:
    """Outputs as records, each as it finishes.

    Attributes:
        key: Template of the record key; None: the execution id.
    """

    topic: str
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOutput:
    """Outputs handed to another pipeline, which owns them from there."""

    publication: str
    idempotency_key_fields: tuple[str, ...]


Source = ObjectSource | TopicSource | CheckpointSource
Output = ObjectOutput | TopicOutput | CheckpointOutput


def template_fields(template: str) -> tuple[str, ...]:
    """The `{field}` names of a key template, in order.

    Raises:
        ValueError: An unbalanced brace, an empty name, or a format or conversion that templates do not have.
    """
    names = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if not name or form or conversion:
            raise ValueError(f"{template!r} is not a template of text and {{field}} names")
        names.append(name)
    return tuple(names)


def fill_template(template: str, text_of: Callable[[str], str]) -> str:
    """A key template with each `{field}` replaced by `text_of(field)`."""
    parts = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(text_of(name))
    return "".join(parts)
