"""What is recorded of an application, and what a start finds (DECISIONS 1, 2, 5)."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.application import Application, Beginning, Found, TopicFound, folded, found_at_start
from schemas.declaration import FORMAT

OWN = {
    "pay.commands": TopicFound("own", "c1", 3),
    "pay.items-changelog": TopicFound("own", "i1", 3),
    "pay.dlq": TopicFound("own", "d1", 3),
}
READ = {"paid": TopicFound("response", "r1", 2), "orders": TopicFound("source", "s1", 4)}


def found(*, partitions: int = 3, release: str = "abc", has_rows: bool = False, **topics: TopicFound) -> Found:
    changed = {name.replace("__", "-").replace("_", "."): topic for name, topic in topics.items()}
    return Found("pay", partitions, release, {"steps": []}, {**OWN, **READ, **changed}, has_rows)


def started() -> Application:
    return folded(found_at_start(Application(), found()).records.items())


def at_start(**changed: Any) -> Beginning:
    return found_at_start(started(), found(**changed))


def test_a_first_start_records_what_it_takes_up() -> None:
    beginning = found_at_start(Application(), found())
    assert (beginning.refusals, beginning.told, beginning.again) == ([], [], frozenset())
    assert beginning.fresh == dict.fromkeys({**OWN, **READ}, 0)
    application = folded(beginning.records.items())
    assert (application.format, application.started, application.partitions) == (FORMAT, True, 3)
    assert (application.active, application.releases) == ("abc", frozenset({"abc"}))
    assert (application.topics["orders"].id, application.topics["orders"].partitions) == ("s1", 4)


def test_a_start_that_finds_nothing_new_writes_nothing() -> None:
    assert at_start() == Beginning([], [], {}, frozenset(), {})


def test_another_release_is_recorded_beside_the_first() -> None:
    beginning = at_start(release="def")
    assert set(beginning.records) == {"active", "release/def"}
    assert beginning.refusals == []


def test_another_number_of_partitions_is_refused_with_what_to_set() -> None:
    (sentence,) = at_start(partitions=6).refusals
    assert "fixed for life" in sentence
    assert "Set kafka.partitions to 3" in sentence
    assert at_start(partitions=6).records == {}


def test_own_topics_with_more_partitions_are_told_and_tolerated() -> None:
    beginning = at_start(pay_commands=TopicFound("own", "c1", 5))
    assert beginning.refusals == []
    (told,) = beginning.told
    assert "pay.commands has 5 partitions; 3 are used" in told


def test_an_own_topic_that_was_made_again_is_refused() -> None:
    (sentence,) = at_start(pay_items__changelog=TopicFound("own", "i2", 3)).refusals
    assert "pay.items-changelog was deleted and made again" in sentence
    assert "new app name" in sentence


@pytest.mark.parametrize("name", ["paid", "orders"])
def test_a_topic_that_is_read_and_was_made_again_begins_at_its_start(name: str) -> None:
    beginning = at_start(**{name: READ[name]._replace(id="new")})
    assert beginning.refusals == []
    assert (beginning.fresh, beginning.again) == ({name: 0}, frozenset({name}))
    assert "read from its start" in beginning.told[0]
    assert set(beginning.records) == {f"topic/{name}"}


def test_partitions_that_were_added_to_a_topic_begin_at_their_start() -> None:
    beginning = at_start(paid=TopicFound("response", "r1", 5))
    assert (beginning.fresh, beginning.again) == ({"paid": 2}, frozenset())
    assert "3 new partitions" in beginning.told[0]


def test_rows_of_nobody_knows_whom_are_refused() -> None:
    """DECISIONS 5: 0.1.0 recorded nothing."""
    (sentence,) = found_at_start(Application(), found(has_rows=True)).refusals
    assert "0.1.0" in sentence
    assert "new app name" in sentence


def test_what_a_newer_version_wrote_is_refused() -> None:
    newer = folded([("format", b"3")])
    (sentence,) = found_at_start(newer, found()).refusals
    assert "there is no way back" in sentence


def test_the_last_record_of_a_key_counts_and_keys_of_later_versions_are_passed_over() -> None:
    records = [
        ("active", b'"one"'),
        ("paused/ask", b"{}"),
        ("active", b'"two"'),
        ("partitions", b"3"),
        ("partitions", None),
    ]
    assert folded(records) == Application(active="two", partitions=3)
