"""One table says how each topic is; what is verified, created, granted comes from it (DESIGN 4)."""

from __future__ import annotations

import pytest

from schemas import limits, topics
from schemas.errors import UsageError
from schemas.topics import TOPICS, TopicSettings, acls, catalogue, external_topic, mismatches, topic_name

BYTES = str(16 * 1024 * 1024)
BY_NAME = {
    settings.name: settings
    for settings in catalogue("pay", partitions=12, replication_factor=3, facts_retention_ms=777)
}


def test_the_catalogue_is_the_designs() -> None:
    suffixes = "commands completions facts replies continuations dispatches refusals dlq application"
    changelogs = [f"{table}-changelog" for table in ("executions", "units", "interactions", "items")]
    assert [topic.suffix for topic in TOPICS] == [*suffixes.split(), *changelogs]
    assert list(BY_NAME) == [f"pay.{topic.suffix}" for topic in TOPICS]


def test_everything_internal_takes_the_largest_record() -> None:
    assert {settings.config["max.message.bytes"] for settings in BY_NAME.values()} == {BYTES}
    assert {settings.bytes_min for settings in BY_NAME.values()} == {limits.RECORD_BYTES_MAX}


def test_changelogs_and_what_is_said_of_the_application_are_compacted_and_nothing_else_is() -> None:
    compacted = {name for name, settings in BY_NAME.items() if settings.config["cleanup.policy"] == "compact"}
    assert compacted == {name for name in BY_NAME if name.endswith("-changelog")} | {"pay.application"}
    assert {settings.config["cleanup.policy"] for name, settings in BY_NAME.items() if name not in compacted} == {
        "delete"
    }


def test_changelogs_never_expire_and_keep_tombstones_for_a_day() -> None:
    for name, settings in BY_NAME.items():
        if name.endswith("-changelog"):
            assert "retention.ms" not in settings.config
            assert settings.config["delete.retention.ms"] == str(topics.CHANGELOG_DELETE_RETENTION_MS) == "86400000"


def test_completions_and_replies_are_stamped_by_the_broker() -> None:
    stamped = {
        name for name, settings in BY_NAME.items() if settings.config.get("message.timestamp.type") == "LogAppendTime"
    }
    assert stamped == {"pay.completions", "pay.replies"}


def test_what_people_read_is_kept_as_the_facts_are() -> None:
    kept = {name for name, settings in BY_NAME.items() if settings.config.get("retention.ms") == "777"}
    assert kept == {"pay.facts", "pay.refusals", "pay.dlq"}


def test_replies_are_gone_soon() -> None:
    config = BY_NAME["pay.replies"].config
    assert int(config["segment.ms"]) < int(config["retention.ms"]) <= 3_600_000


def test_what_one_task_owns_is_co_partitioned() -> None:
    home = {name for name, settings in BY_NAME.items() if settings.spread == "home"}
    assert home == {
        f"pay.{topic.suffix}" for topic in TOPICS if topic.suffix in {"commands", "completions", "facts"}
    } | {name for name in BY_NAME if name.endswith("-changelog")}
    assert {settings.partitions for name, settings in BY_NAME.items() if name != "pay.application"} == {12}
    assert BY_NAME["pay.application"].partitions == 1, "all that is said of it is in one order"


@pytest.mark.parametrize(("factor", "in_sync"), [(-1, None), (1, None), (2, None), (3, "2"), (5, "2")])
def test_three_replicas_need_two_in_sync(factor: int, in_sync: str | None) -> None:
    for settings in catalogue("a", partitions=1, replication_factor=factor, facts_retention_ms=1, external=["x"]):
        assert settings.config.get("min.insync.replicas") == in_sync
        assert settings.replication_factor == factor


def test_external_topics_come_last_and_once() -> None:
    found = catalogue(
        "a", partitions=3, replication_factor=1, facts_retention_ms=1, external=["q", "r", "q", "a.facts"]
    )
    assert [settings.name for settings in found[len(TOPICS) :]] == ["q", "r"]
    assert len({settings.name for settings in found}) == len(found)


@pytest.mark.parametrize(
    ("app", "external"), [("", ["x y"]), ("a b", []), ("zoë", []), ("a" * 250, []), ("a", [""]), ("a", [".."])]
)
def test_names_that_kafka_does_not_take(app: str, external: list[str]) -> None:
    with pytest.raises(UsageError, match="no topic name"):
        catalogue(app, partitions=1, replication_factor=1, facts_retention_ms=1, external=external)


def test_no_partitions_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kafka\.partitions is 0"):
        catalogue("a", partitions=0, replication_factor=1, facts_retention_ms=1)


# --- verification ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_a_topic_as_it_was_made_will_do(name: str) -> None:
    assert mismatches(BY_NAME[name], BY_NAME[name].partitions, BY_NAME[name].config) == []


@pytest.mark.parametrize("name", ["pay.commands", "pay.items-changelog"])
def test_more_partitions_than_the_application_uses_will_do(name: str) -> None:
    """DECISIONS 2: those beyond stay empty."""
    assert mismatches(BY_NAME[name], 13, BY_NAME[name].config) == []


def test_other_settings_are_the_operators_own() -> None:
    config = {
        **BY_NAME["pay.facts"].config,
        "retention.ms": "1",
        "compression.type": "zstd",
        "max.message.bytes": "99999999",
    }
    assert mismatches(BY_NAME["pay.facts"], 12, config) == []


@pytest.mark.parametrize(
    ("name", "partitions", "changed", "words"),
    [
        ("pay.commands", 6, {}, ["6 partitions, not 12", "fixed for life", "kafka.partitions to 6"]),
        ("pay.items-changelog", 11, {}, ["11 partitions, not 12"]),
        (
            "pay.items-changelog",
            12,
            {"cleanup.policy": "delete"},
            ["cleanup.policy=delete, not compact", "lost by age"],
        ),
        ("pay.items-changelog", 12, {"cleanup.policy": "compact,delete"}, ["compact,delete", "lost by age"]),
        ("pay.items-changelog", 12, {"delete.retention.ms": "1000"}, ["delete.retention.ms=1000", "deletions"]),
        ("pay.facts", 12, {"cleanup.policy": "compact"}, ["lost by compaction", "--add-config cleanup.policy=delete"]),
        ("pay.completions", 12, {"message.timestamp.type": "CreateTime"}, ["LogAppendTime", "broker's clock"]),
        (
            "pay.completions",
            12,
            {"max.message.bytes": "1048588"},
            ["max.message.bytes=1048588", f"max.message.bytes={BYTES}"],
        ),
    ],
)
def test_each_mismatch_says_what_to_do(name: str, partitions: int, changed: dict[str, str], words: list[str]) -> None:
    (message,) = mismatches(BY_NAME[name], partitions, {**BY_NAME[name].config, **changed})
    assert message.startswith(f"{name} has ")
    assert [word for word in words if word not in message] == []


def test_all_mismatches_are_told_at_once() -> None:
    assert len(mismatches(BY_NAME["pay.completions"], 1, {"cleanup.policy": "compact"})) == 4


def test_what_is_not_said_has_kafkas_default() -> None:
    found = mismatches(BY_NAME["pay.items-changelog"], 12, {})
    assert [message.split(" has ")[1].split(",")[0] for message in found] == [
        "cleanup.policy=delete",
        "max.message.bytes=1048588",
    ]


EXTERNAL = external_topic("bank.results", partitions=12, replication_factor=1)


@pytest.mark.parametrize("partitions", [1, 5, 12, 100])
def test_an_external_topic_may_have_any_number_of_partitions(partitions: int) -> None:
    assert mismatches(EXTERNAL, partitions, EXTERNAL.config) == []


def test_an_external_topic_must_take_the_largest_payload() -> None:
    enough = str(limits.PAYLOAD_BYTES_MAX + 256 * 1024)
    assert mismatches(EXTERNAL, 1, {"max.message.bytes": enough}) == []
    assert len(mismatches(EXTERNAL, 1, {"max.message.bytes": str(limits.PAYLOAD_BYTES_MAX)})) == 1


def test_an_external_topic_must_not_be_compacted() -> None:
    assert len(mismatches(EXTERNAL, 1, {**EXTERNAL.config, "cleanup.policy": "compact"})) == 1


# --- access ------------------------------------------------------------------------------------------------------------------------

GRANTED = {
    (acl.principal, acl.resource, acl.name): acl.operations
    for acl in acls("pay", requests=["bank.requests"], responses=["bank.results"])
}


def test_readers_see_what_is_for_everybody_and_write_nothing() -> None:
    seen = {name: operations for (who, _, name), operations in GRANTED.items() if who == "reader"}
    assert seen == dict.fromkeys(["pay.facts", "pay.refusals", "pay.dlq"], ("READ", "DESCRIBE"))


def test_the_provider_touches_its_two_topics_only() -> None:
    seen = {name: operations for (who, _, name), operations in GRANTED.items() if who == "provider"}
    topics = {"bank.requests": ("READ", "DESCRIBE"), "bank.results": ("WRITE", "DESCRIBE")}
    assert seen == {**topics, "pay-provider": ("READ", "DESCRIBE")}


def test_nobody_but_workers_writes_facts_and_tables() -> None:
    writers = {(who, name) for (who, _, name), operations in GRANTED.items() if "WRITE" in operations}
    assert {who for who, name in writers if name == "pay.facts" or name.endswith("-changelog")} == {"worker"}


def test_the_operator_commands_and_answers_through_topics() -> None:
    assert GRANTED["operator", "TOPIC", "pay.commands"] == ("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")
    assert GRANTED["operator", "TOPIC", "pay.completions"] == ("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")
    assert GRANTED["operator", "TOPIC", "pay.items-changelog"] == ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")


def test_workers_have_every_topic_their_groups_and_their_transactions() -> None:
    for topic in TOPICS:
        assert "DESCRIBE_CONFIGS" in GRANTED["worker", "TOPIC", topic_name("pay", topic.suffix)]
    prefixed = {acl.resource: (acl.name, acl.pattern) for acl in acls("pay") if acl.pattern == "PREFIXED"}
    assert prefixed == {"GROUP": ("pay.", "PREFIXED"), "TRANSACTIONAL_ID": ("pay.", "PREFIXED")}


def test_workers_hear_outcomes_too_for_they_move_inputs_away() -> None:
    assert {"READ", "WRITE"} <= set(GRANTED["worker", "TOPIC", "pay.replies"])


def test_every_topic_has_a_writer_and_a_reader() -> None:
    for topic in TOPICS:
        assert topic.writers
        assert topic.readers


def test_settings_are_plain_tuples() -> None:
    assert issubclass(TopicSettings, tuple)
