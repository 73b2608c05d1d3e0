"""Violations: what did not hold in a simulated run, under a name that stays while its words change."""

from __future__ import annotations

from enum import StrEnum


class Breach(StrEnum):
    """What can go wrong in a run. A failed run names one of these first; a planted bug names the one that must catch it."""

    # facts
    FACT_AWAY_FROM_HOME = "fact-away-from-home"
    FACT_AFTER_THE_END = "fact-after-the-end"
    HAPPENED_TWICE = "happened-twice"
    IMPOSSIBLE_TRANSITION = "impossible-transition"
    ADMITTED_AFTER_TIMEOUT = "admitted-after-timeout"
    WINDOW_EXCEEDED = "window-exceeded"
    UNIT_LEFT_OPEN = "unit-left-open"
    ITEMS_MISSING = "items-missing"
    # workers
    BATCH_NOT_DECIDED = "batch-not-decided"
    EVENT_BLAMED = "event-blamed"
    ROW_NOT_NEW = "row-not-new"
    OFFERED_BEFORE_COMMIT = "offered-before-commit"
    WORK_STARTED_TWICE = "work-started-twice"
    ZOMBIE_COMMITTED = "zombie-committed"
    WORKER_RAISED = "worker-raised"
    # tables
    TABLES_DIFFER = "tables-differ"
    RESTORE_DIFFERS = "restore-differs"
    PAUSED_FOR_NOTHING = "paused-for-nothing"
    WAITS_FOR_NOTHING = "waits-for-nothing"
    LOST_OFFSETS_IGNORED = "lost-offsets-ignored"
    NEVER_AT_REST = "never-at-rest"
    ROWS_LEFT_BEHIND = "rows-left-behind"
    FORGOTTEN_CAME_BACK = "forgotten-came-back"
    NEVER_FORGOTTEN = "never-forgotten"
    # endings
    UNEXPECTED_ENDING = "unexpected-ending"
    DEAD_LETTERS_MISCOUNTED = "dead-letters-miscounted"
    OUTCOME_NOT_TOLD = "outcome-not-told"
    # requests and answers
    ROW_NOT_SUBMITTED = "row-not-submitted"
    TAKEN_UNFINISHED = "taken-unfinished"
    WRONG_VALUE = "wrong-value"
    WRONG_KEY = "wrong-key"
    ITEMS_ABANDONED = "items-abandoned"
    REQUESTS_MISCOUNTED = "requests-miscounted"
    HELD_ANSWER_FORGOTTEN = "held-answer-forgotten"
    ANSWER_MISJUDGED = "answer-misjudged"
    ANSWER_WITHOUT_OUTCOME = "answer-without-outcome"
    ORIGIN_UNKNOWN = "origin-unknown"
    TIMED_OUT_IN_TIME = "timed-out-in-time"
    REFUSED_IN_TIME = "refused-in-time"
    ADMITTED_TOO_LATE = "admitted-too-late"
    RANG_EARLY = "rang-early"
    # outputs
    WRONG_ITEM_OUTPUT = "wrong-item-output"
    WRONG_PUBLICATION = "wrong-publication"
    OUTPUTS_DIFFER = "outputs-differ"


class Violation(AssertionError):
    """Something that must hold does not."""

    def __init__(self, breach: Breach, why: str) -> None:
        self.breach = breach
        super().__init__(why)


class Failed(AssertionError):
    """A run in which something did not hold.

    Attributes:
        seed: Plays it again.
        breach: What did not hold, by its stable name.
    """

    def __init__(self, seed: int, breach: Breach, why: str) -> None:
        self.seed = seed
        self.breach = breach
        super().__init__(
            f"seed {seed}: {breach}: {why}\n    again, with every move: python -m streams.simulation --seed {seed} --trace"
        )
