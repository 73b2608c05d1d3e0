"""Looks at how far the log goes and how far it is taken over, for all tasks of a worker together, aside.

A look asks for the ends of some topics, then what groups have committed of them, then the ends of partitions that are read last, in this order:
so what is found to be taken over was there when the first ends were read. Tasks want looks at the same moments and mostly of the same topics.
What is wanted while a look is under way waits for the next one, which answers all of it: a look costs the broker as much for one task as for
many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from schemas.errors import LogUnavailable
from streams.engine.aside import Aside, Asked
from streams.log.seam import Log, TopicPartition

LOOK_TIMEOUT_S = 5.0

PASSED_S_MAX = 0.8
PASSED_EVERY_S = 0.1
"""While a look finds that something is not taken over yet, it asks again, for a moment: whoever wants it looks at the answer once a batch."""

Ends = Mapping[TopicPartition, int]
Wait = Callable[[float], bool]
"""Waits for some seconds, aside; False: it does not."""


class Before(NamedTuple):
    """A topic, and the group that takes it over."""

    topic: str
    group: str


class Look(NamedTuple):
    """What a look found.

    Attributes:
        ends: High watermarks, by topic: of those that were wanted, at least.
        taken: How far what was wanted is taken over; absent: not known.
        last: The end of the partition that is read last; None: not known.
    """

    ends: Mapping[str, Ends]
    taken: Mapping[Before, Ends]
    last: int | None


class Wanted:
    """A look that a task wants, and what it found once it is over.

    Args:
        fresh: Topics whose ends are wanted.
        known: By what is asked: ends that were found before, and how far they are taken over is wanted, as of those of fresh topics.
        last: The partition whose end is read last.
    """

    def __init__(self, fresh: AbstractSet[str], known: Mapping[Before, Sequence[Ends]], last: TopicPartition) -> None:
        self.fresh = fresh
        self.known = known
        self.last = last
        self.is_over = False
        self._found: Look | None = None

    def end(self, found: Look | None) -> None:
        """It is over; None: no answer."""
        self.is_over, self._found = True, found

    def answer(self) -> Look | None:
        """What it found; None: no answer."""
        assert self.is_over
        return self._found


class Seen(NamedTuple):
    """What a look found for all who wanted it; as `Look`, with the ends of every partition that is read last."""

    ends: Mapping[str, Ends]
    taken: Mapping[Before, Ends]
    lasts: Ends | None


class Looks:
    """The looks of one worker; for the loop's thread."""

    def __init__(self, log: Log, aside: Aside) -> None:
        self._log = log
        self._aside = aside
        self._wait: Wait = aside.wait
        self._waiting: list[Wanted] = []
        self._looking: list[Wanted] = []
        self._asked: Asked[Seen] | None = None

    def want(self, wanted: Wanted) -> None:
        """Let the next look answer this too."""
        self._waiting.append(wanted)

    def go_on(self) -> None:
        """Hand out what a look found, and begin the next one."""
        if self._asked is not None and self._asked.is_over:
            asked, self._asked = self._asked, None
            self._hand_out(asked)
        if self._asked is None and self._waiting:
            self._looking, self._waiting = self._waiting, []
            log, wanted, wait = self._log, self._looking, self._wait
            self._asked = self._aside.ask(lambda: look(log, wanted, wait))

    def _hand_out(self, asked: Asked[Seen]) -> None:
        looking, self._looking = self._looking, []
        try:
            seen = asked.answer()
        except LogUnavailable:
            for each in looking:
                each.end(None)
            return
        for each in looking:
            each.end(Look(seen.ends, seen.taken, None if seen.lasts is None else seen.lasts[each.last]))


def look(log: Log, wanted: Sequence[Wanted], wait: Wait) -> Seen:
    """Read the ends of some topics, then how far they and those known before are taken over, then the ends that are read last, in this order.

    What was read is kept if the rest fails: ends that are read again while records keep coming move away.

    Raises:
        LogUnavailable: no answer at all.
    """
    ends = _ends_of(log, {topic for each in wanted for topic in each.fresh})
    taken: dict[Before, Ends] = {}
    try:
        for before in dict.fromkeys(before for each in wanted for before in each.known):
            earlier = [known for each in wanted for known in each.known.get(before, ())]
            taken[before] = _soon_taken_over(log, before.group, [*earlier, ends.get(before.topic, {})], wait)
        lasts = list(dict.fromkeys(each.last for each in wanted))
        return Seen(ends, taken, log.end_offsets(lasts, "uncommitted", LOOK_TIMEOUT_S))
    except LogUnavailable:
        return Seen(ends, taken, None)


def _ends_of(log: Log, topics: AbstractSet[str]) -> Mapping[str, Ends]:
    """The high watermarks of all partitions that the topics have now."""
    if not topics:
        return {}
    names = sorted(topics)
    known = log.topics(names, LOOK_TIMEOUT_S)
    missing = [name for name in names if name not in known]
    if missing:
        raise LogUnavailable(f"the topic {missing[0]} is not there")
    partitions = [TopicPartition(name, number) for name in names for number in range(known[name].partitions)]
    ends = log.end_offsets(partitions, "uncommitted", LOOK_TIMEOUT_S)
    return {name: {at: end for at, end in ends.items() if at.topic == name} for name in names}


def _soon_taken_over(log: Log, group: str, wanted: Sequence[Ends], wait: Wait) -> Ends:
    """What a group has committed, once it has passed all that is wanted, or after a moment."""
    partitions = list(dict.fromkeys(at for ends in wanted for at in ends))
    taken = _taken_over(log, group, partitions)
    for _ in range(round(PASSED_S_MAX / PASSED_EVERY_S)):
        if all(are_taken_over(ends, taken) for ends in wanted) or not wait(PASSED_EVERY_S):
            break
        taken = _taken_over(log, group, partitions)
    return taken


def _taken_over(log: Log, group: str, partitions: Sequence[TopicPartition]) -> Ends:
    """What a group has committed; what it never committed it takes up from the log start."""
    committed = log.group_offsets(group, partitions, LOOK_TIMEOUT_S)
    never = [at for at in partitions if committed.get(at) is None]
    starts = log.start_offsets(never, LOOK_TIMEOUT_S) if never else {}
    return {at: starts[at] if at in starts else committed[at] or 0 for at in partitions}


def are_taken_over(ends: Ends, taken: Ends) -> bool:
    """Whether everything below these ends is taken over."""
    return all(taken.get(at, -1) >= end for at, end in ends.items())
