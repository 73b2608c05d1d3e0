"""Logs: one line an event on stderr, in words or JSON, without secrets and without noise."""

from __future__ import annotations

import json
import logging

import pytest
import structlog

from streams.telemetry import logs


def test_json_logs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="info")
    structlog.get_logger("kawait.test").info("it began", rows=12)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["rows"]) == ("it began", "info", 12)
    assert line["timestamp"].endswith("Z")


def test_all_is_quiet_when_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    structlog.get_logger().info("it began")
    logging.getLogger("connectors.objects.listing").info("looked")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_field_that_may_be_a_secret_is_blanked(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json")
    structlog.get_logger().warning("refused", resume_token="abc", sasl_password="def", reason="late")
    said = capsys.readouterr().err
    assert "abc" not in said
    assert "def" not in said
    assert json.loads(said)["reason"] == "late"


def test_the_standard_librarys_loggers_take_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json")
    logging.getLogger("connectors.objects.listing").warning("cannot read %s", "a.csv")
    assert json.loads(capsys.readouterr().err)["event"] == "cannot read a.csv"


def test_what_is_said_again_and_again_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    for attempt in range(5):
        logging.getLogger("provider").warning("broker is away (after %s ms)", attempt)
        logging.getLogger("provider").warning("FAIL [%s] [thrd:main]: %s", "rdkafka#1", attempt)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_exception_is_logged_with_its_trace_in_either_format(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        logs.configure(log_format=form)
        try:
            raise ValueError("broken")
        except ValueError:
            structlog.get_logger().exception("failed")
        assert "ValueError" in capsys.readouterr().err
