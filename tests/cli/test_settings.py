"""Where settings come from, and that no message shows a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import PipelineError, UsageError
from streams.cli.options import environment_name
from streams.log.kafka.connection import BOOTSTRAP_DEFAULT, connection, environment_properties, read_properties
from topologies.reading.choice import PipelineChoice

SECRET = "correct horse battery staple"


def test_every_flag_has_an_environment_name() -> None:
    assert environment_name("--state-dir") == "KAWAIT_STATE_DIR"


def test_environment_names_become_librdkafka_properties() -> None:
    found = environment_properties(
        {"KAWAIT_KAFKA_SASL_USERNAME": "ann", "KAWAIT_KAFKA_LOG__LEVEL": "0", "KAWAIT_APP": "x", "KAFKA_HOME": "y"}
    )
    assert found == {"sasl.username": "ann", "log_level": "0"}


def test_the_environment_wins_over_the_file_and_the_flag_over_both(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# ours\nbootstrap.servers=file:1\nsasl.username = bob\nsasl.password=a=b\n\n! old\n")
    found = connection(None, file, {"KAWAIT_KAFKA_SASL_USERNAME": "ann"})
    assert (found.bootstrap, dict(found.config)) == ("file:1", {"sasl.username": "ann", "sasl.password": "a=b"})
    assert connection("flag:1", file, {}).bootstrap == "flag:1"
    assert connection(None, None, {}).bootstrap == BOOTSTRAP_DEFAULT


def test_a_connection_does_not_show_its_credentials() -> None:
    assert SECRET not in repr(connection("here:1", None, {"KAWAIT_KAFKA_SASL_PASSWORD": SECRET}))


def test_a_line_that_is_no_property_is_named_by_its_number_only(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text(f"a=b\n{SECRET}\n")
    with pytest.raises(UsageError, match=r"kafka\.properties:2: not a property") as raised:
        read_properties(file)
    assert SECRET not in str(raised.value)


def test_a_properties_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.properties cannot be read"):
        read_properties(tmp_path / "nowhere.properties")


def test_the_app_is_known_without_importing_anything(pipeline: Path) -> None:
    (pipeline.parent / "shop.py").write_text("raise SystemExit('imported')")
    assert PipelineChoice(path=pipeline).app_name({}) == "approvals"
    assert PipelineChoice(path=pipeline, overrides=["app=other"]).app_name({}) == "other"
    assert PipelineChoice(path=pipeline, app="mine").app_name({}) == "mine"


def test_an_app_that_is_not_there_is_an_error_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("steps: []\n")
    with pytest.raises(PipelineError, match="app"):
        PipelineChoice(path=file).app_name({})


def test_only_what_signs_needs_the_token_keys(pipeline: Path) -> None:
    pipeline.write_text(f'{pipeline.read_text()}tokens: {{active: k1, keys: {{k1: "${{KAWAIT_TOKEN_K1}}"}}}}\n')
    choice = PipelineChoice(path=pipeline)
    assert choice.load_without_secrets({}).app == "approvals"
    loaded = choice.load_without_secrets({"KAWAIT_TOKEN_K1": SECRET})
    assert loaded.tokens is not None
    assert loaded.tokens.keys["k1"] == SECRET.encode()
    with pytest.raises(PipelineError, match="KAWAIT_TOKEN_K1"):
        choice.load({})
