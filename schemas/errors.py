"""Every error that crosses a module boundary, and whose fault it is.

    KawaitError
    ├── UsageError                  the pipeline's author or the operator: fail at start, before a record is read
    │   ├── PipelineError           pipeline.yaml: every problem at once, with file and line
    │   ├── TopicMismatch           a topic is missing or has other settings than the pipeline needs
    │   ├── StateDirectoryHeld      another process holds the state directory
    │   ├── FormatUnknown           state that another version wrote, in a format that this one does not read
    │   ├── OffsetsLost             a committed offset is gone, and where to go on is not ours to guess
    │   ├── StartRefused            what is recorded of the application does not allow this start
    │   └── TopicMadeAgain          an input topic is another one now: only a start can take it up
    ├── StateBroken                 the disk does not give back what was written: the worker ends, its next start rebuilds
    ├── PeerError                   the outside sent something illegal: quarantine the record, go on
    │   ├── PoisonRecord            not decodable: to the dead-letter topic
    │   └── TokenRejected           a resume token that does not prove what it should
    ├── StepError                   the author's function failed: retry by the step's policy, then dead-letter
    │   ├── CallTimeout             the function took longer than callTimeout
    │   ├── SourceChanged           a source re-read after a restart differs from what was dispatched
    │   └── PublicationConflict     the target object exists with other content
    └── LogError                    the broker or the way to it
        ├── LogUnavailable          nothing happened; try again later
        ├── TransactionAborted      the transaction did not happen and must be aborted: decide the batch again
        │   └── RecordTooLarge      ... because of its content
        ├── CommitUnknown           the commit may or may not have happened: take over from what is committed
        ├── ProducerFenced          another producer took this transactional id (or the coordinator timed it out)
        ├── InstanceFenced          another process took this group instance id: exit
        └── OffsetOutOfRange        a position is no longer kept: rebuild, never skip

Expected outcomes (a late, conflicting or unknown answer, a suspension) are values, never exceptions.
"""

from __future__ import annotations

from dataclasses import dataclass


class KawaitError(Exception):
    """The root; never raised itself."""


class UsageError(KawaitError):
    """A mistake of the pipeline's author or the operator."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a pipeline file.

    Attributes:
        file: The file as the user named it.
        line: 1-based line, 0 when the problem has no place in the file.
        where: The dotted path of the key, as `--set` takes it.
        message: What is wrong.
        advice: What to write instead.
    """

    file: str
    line: int
    where: str
    message: str
    advice: str


class PipelineError(UsageError):
    """A pipeline that cannot run.

    Attributes:
        problems: Every problem found, in file order; never empty.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{first.file}:{first.line}: {first.where}: {first.message}; {first.advice}{more}")


class TopicMismatch(UsageError):
    """A topic is missing or is not as the pipeline needs it."""


class StateDirectoryHeld(UsageError):
    """Another process works in the state directory."""


class FormatUnknown(UsageError):
    """State was written in a format that this version does not read."""


class OffsetsLost(UsageError):
    """A partition had a committed offset and has none any more."""


class StartRefused(UsageError):
    """What is recorded of the application, or what became of its topics, does not allow this start."""


class TopicMadeAgain(UsageError):
    """An input topic was deleted and made again under a running worker; positions and keys are of the old one."""


class StateBroken(KawaitError):
    """A store can no longer be read or written; no record is to blame."""


class PeerError(KawaitError):
    """The outside party sent something illegal."""


class PoisonRecord(PeerError):
    """A record that cannot be decoded.

    Attributes:
        reason: kebab-case, stable; used as header and metric label.
    """

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}")


class TokenRejected(PeerError):
    """A resume token that is missing, malformed, forged or meant for something else."""


class StepError(KawaitError):
    """The author's function, or an effect done for the author, failed.

    Attributes:
        code: UPPER_SNAKE, stable; stored on the execution and shown to operators.
        retryable: False when another attempt cannot help.
    """

    code = "STEP_FAILED"
    retryable = True


class CallTimeout(StepError):
    """The function took longer than its `callTimeout`."""

    code = "CALL_TIMEOUT"


class SourceChanged(StepError):
    """The source no longer is what the dispatched requests were made of (DESIGN 7)."""

    code = "SOURCE_CHANGED"
    retryable = False


class PublicationConflict(StepError):
    """The target object is there already, with other content (DESIGN 7)."""

    code = "PUBLICATION_CONFLICT"
    retryable = False


class LogError(KawaitError):
    """The broker, or the way to it."""


class LogUnavailable(LogError):
    """The log did not answer in time, or refused for a reason that passes; nothing happened."""


class TransactionAborted(LogError):
    """The transaction has not happened; abort it, then decide the batch again."""


class RecordTooLarge(TransactionAborted):
    """A record of the transaction is larger than the broker or the client takes."""


class CommitUnknown(LogError):
    """The commit's answer was lost: it may have happened. Never go on from memory (DESIGN 6).

    Attributes:
        fenced: The answer was that the id is not ours any more, which does not say whether the commit came through before.
    """

    def __init__(self, message: str, *, fenced: bool = False) -> None:
        self.fenced = fenced
        super().__init__(message)


class ProducerFenced(LogError):
    """The transactional id belongs to a newer producer, or the coordinator timed this one out."""


class InstanceFenced(LogError):
    """The group instance id belongs to a newer process: this one must exit."""


class OffsetOutOfRange(LogError):
    """A position lies outside what the log still keeps; it is never reset silently (CASES 65, 67)."""
