"""Names of an application's topics, groups and transactional ids (SURFACE 'Topics and envelopes')."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.topics import topic_name


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

    def changelog(self, table: str) -> str:
        """The changelog topic of a table."""
        return topic_name(self.app, f"{table}-changelog")

    def group(self, role: str) -> str:
        """The consumer group of a role."""
        return f"{self.app}.{role}"

    def transactional_id(self, role: str, instance: str) -> str:
        """The transactional id of a role on an instance: stable, so that a restart fences its predecessor."""
        return f"{self.app}.{role}.{instance}"
