"""`onTimeout: {value: ...}` goes on with the value that was written, every digit of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import PipelineError
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Value
from topologies.reading.loading import load_pipeline

TYPES = """
from decimal import Decimal
from pydantic import BaseModel
class A(BaseModel):
    amount: Decimal = Decimal(0)
    count: int = 0
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Pipeline]:
    (tmp_path / "timeout_types.py").write_text(TYPES, encoding="utf-8")

    def load_with(value: str) -> Pipeline:
        (tmp_path / "pipeline.yaml").write_text(
            "app: digits\n"
            "steps:\n"
            "  - {name: Ask, kind: await, input: 'timeout_types:A', output: 'timeout_types:A', timeout: PT1M,\n"
            f"     onTimeout: {{value: {value}}},\n"
            "     await: {transport: {type: kafka, request: {topic: q}, response: {topic: r}}}}\n",
            encoding="utf-8",
        )
        return load_pipeline(tmp_path / "pipeline.yaml", environ={})

    return load_with


@pytest.mark.parametrize("value", ["{amount: 12345678901234567.89}", "{count: 1234567890123456789}"])
def test_a_number_whose_digits_yaml_does_not_keep_is_refused(load: Callable[[str], Pipeline], value: str) -> None:
    with pytest.raises(PipelineError) as refused:
        load(value)
    (problem,) = refused.value.problems
    assert (problem.where, problem.advice) == ("steps.ask.onTimeout.value", "put it into quotes")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ('{amount: "12345678901234567.89"}', b'{"amount":"12345678901234567.89","count":0}'),
        ('{count: "1234567890123456789"}', b'{"amount":"0","count":1234567890123456789}'),
        ("{amount: 0.5, count: 123456789012345678}", b'{"amount":"0.5","count":123456789012345678}'),
    ],
)
def test_what_is_written_is_what_the_execution_goes_on_with(
    load: Callable[[str], Pipeline], value: str, written: bytes
) -> None:
    assert load(value).await_steps[0].on_timeout == Value(json=written)
