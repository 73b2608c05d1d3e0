"""Names of an application's topics, groups and transactional ids (SURFACE 'Topics and envelopes')."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from schemas.envelopes import Command, ContinuationCompletion, ProviderCompletion
from schemas.identity import home_partition
from schemas.topics import topic_name


class Home(NamedTuple):
    """Where a record is written so that the task of its execution reads it."""

    topic: str
    key: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class Names:
    """Everything that is named after `app`."""

    app: str
    commands: str
    completions: str
    facts: str
    replies: str
    continuations: str
    refusals: str
    dlq: str

    @classmethod
    def of(cls, app: str) -> Names:
        """The names of one application."""
        suffixes = ("commands", "completions", "facts", "replies", "continuations", "refusals", "dlq")
        return cls(app, *(topic_name(app, suffix) for suffix in suffixes))

    def home_of(self, message: Command | ProviderCompletion | ContinuationCompletion, partitions: int) -> Home:
        """Where a command or completion goes: the topic of its kind, the partition of its execution (DESIGN 4)."""
        is_completion = isinstance(message, (ProviderCompletion, ContinuationCompletion))
        execution = message.execution_id
        topic = self.completions if is_completion else self.commands
        return Home(topic, execution.encode(), home_partition(execution, partitions))

    def changelog(self, table: str) -> str:
        """The changelog topic of a table."""
        return topic_name(self.app, f"{table}-changelog")

    def group(self, role: str) -> str:
        """The consumer group of a role."""
        return f"{self.app}.{role}"

    def transactional_id(self, role: str, instance: str) -> str:
        """The transactional id of a role on an instance: stable, so that a restart fences its predecessor."""
        return f"{self.app}.{role}.{instance}"
