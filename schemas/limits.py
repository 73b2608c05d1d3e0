"""Every bound of the runtime, named once (DESIGN 8, policy 11). Units come last in the names.

A bound that a user can move names its setting; a message about a bound names it too.
"""

from __future__ import annotations

WINDOW_MAX = 65_536
"""Largest `live.window`: unresolved items of one unit."""

WINDOW_DEFAULT = 8_192
"""`live.window` when the step does not say. Chosen by measurement: see bench/README.md."""

LIVE_IDLE_DEFAULT_MS = 30_000
"""`live.idle` when the step does not say: a session without work for so long parks its unit."""

LIVE_SESSIONS_MAX = 64
"""Live sessions of one worker; a unit beyond it takes the suspending path."""

BATCH_RECORDS_MAX = 4_000
"""Events decided in one transaction."""

GATHER_S_MAX = 0.003
GATHER_RATE_MAX = 10_000
"""A batch gathers for up to so many seconds where its role writes so many records a second or more, and proportionally less below:
at 16 requests in flight 1 ms, at one next to nothing."""

BATCH_S_MAX = 0.15
"""While a timer is due, a batch that takes longer makes the next ones smaller, down to `BATCH_RECORDS_MIN`: timers wait for no batch for long."""

BATCH_RECORDS_MIN = 50
"""No slowness makes batches smaller."""

SOURCE_RECORDS_MAX = 500
"""Records of one partition of a topic source that wait to be submitted; beyond it reading pauses, so that answers do not stand behind a backlog
of new work."""

COMMANDS_SHARE = 8
"""One such part of a batch is for commands while answers and results wait: under a backlog what has begun is ended before more is begun."""

RINGS_SHARE = 8
"""One such part of a batch is for due timers while records wait: kept for them, so that a backlog starves none, and no more, so that
thousands at once hold up nobody."""

BESIDE_MS = 1_000
"""Shortest time between two looks at what a task's due deadlines wait for, and between two commits of positions that no record moved."""

GATE_SHUT_TOLD_MS = 60_000
"""A deadline that is held back so long by answers that were not taken over yet is told (`kawait_deadlines_held`)."""

PROBE_EVERY_MS = 60_000
"""How often a worker asks for the broker's time."""

CLOCK_DIFFERENCE_TOLD_MS = 1_000
"""A worker whose clock is so far from the broker's says so."""

CLOCK_DIFFERENCE_MS_MAX = 300_000
"""A worker whose clock is farther from the broker's does not run."""

PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Largest request, completion or step output, encoded."""


def payload_problem(what: str, size: int) -> str:
    """The sentence about a payload that is too large; `what` names it."""
    return f"{what} has {size} bytes; at most {PAYLOAD_BYTES_MAX} are taken (limits.PAYLOAD_BYTES_MAX)"


TRANSACTION_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of outputs decided in one transaction before the rest of the batch waits for the next."""

READ_ROWS = 64
"""Rows that a job reads before it looks at how large they are."""

JOB_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of payloads that one job of the worker pool takes on, give or take one; the rest is for the next."""

INBOX_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of records of one partition that wait to be decided; beyond it reading pauses."""

RECORD_BYTES_MAX = 16 * 1024 * 1024
"""`max.message.bytes` of our own topics, and of our producers."""

DEAD_LETTER_BYTES_MAX = 256 * 1024
"""Bytes of a poison value kept in the dead-letter topic; longer ones are truncated with length and sha256."""

AGGREGATE_ITEMS_MAX = 10_000
"""Items of a MANY_TO_ONE or MANY_TO_MANY step's input or output."""

EARLY_HELD_MAX = 1_000
"""Answers held for steps that an execution has not reached yet (policy 9)."""

REFUSAL_FACTS_MAX = 10
"""Refusal facts of one interaction (policy 1); further refusals only go to the refusals topic."""

SLICE_ITEMS = 2_000
"""Items handled at a time when a parked unit's continuations are emitted."""

PULL_ITEMS_MAX = 2_000
"""Source items read in one go."""

COUNTED_KEYS_MAX = 2_000_000
"""Idempotency keys of all open streams that a worker keeps in memory to tell repeats; beyond it a stream counts in a temporary file."""

CHUNK_ITEMS_MAX = 2_048
"""Items that one suffix job runs one after another on the worker pool."""

POOL_THREADS = 8
"""Threads that run the author's functions."""

CALL_TIMEOUT_DEFAULT_MS = 300_000
"""`callTimeout` when the step does not say."""

RETRY_ATTEMPTS_DEFAULT = 3
RETRY_BASE_DEFAULT_MS = 200
RETRY_MULTIPLIER_DEFAULT = 2.0
RETRY_CAP_DEFAULT_MS = 1_800_000
"""`retry` when the step does not say: three attempts, 200 ms doubling, 30 minutes at most."""

CONTINUATION_TIMEOUT_MS = 600_000
"""How long the owner waits for a continuation completion before it emits the record again."""

CONTINUATION_ATTEMPTS_MAX = 5
"""Times a continuation record is emitted for one attempt before the item counts as failed."""

TRANSACTION_TIMEOUT_MS = 5_000
"""`transaction.timeout.ms`: how long a dead producer's open transaction may block readers."""

SESSION_TIMEOUT_MS = 10_000
"""`session.timeout.ms`: how long a dead worker's partitions stay idle."""

OPEN_GROUPS_MAX = 32
"""Output objects of one execution that are open at a time (`output.groupBy`)."""

PUBLISH_CHUNK_ITEMS = 100
"""Item rows read at a time while an object is published; each may be megabytes."""

RESTORE_RECORDS = 5_000
"""Changelog records applied at a time during restore."""

PUBLICATION_ATTEMPTS_MAX = 5
"""Effects tried for one prepared publication before the execution is dead-lettered."""

FAILURES_KEPT = 20
"""Failed items that an execution names when it fails; the others are counted."""

FAILURE_CHARS_MAX = 200
"""Characters about each of them."""

MESSAGE_CHARS_MAX = 2_000
"""Error text kept on rows and in facts; the start says what happened."""
