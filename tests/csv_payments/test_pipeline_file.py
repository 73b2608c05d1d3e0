"""The demo's pipeline.yaml is a good pipeline, read as any author's would be."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from connectors.objects.listing import identify
from connectors.objects.row_formats import CsvRows
from tests.csv_payments.author import PROJECT
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import AwaitStep, RunStep
from topologies.reading.loading import load_pipeline

PIPELINE = PROJECT / "pipeline.yaml"


@pytest.fixture
def pipeline() -> Pipeline:
    return load_pipeline(PIPELINE, environ={"KAWAIT_TOKEN_K1": "a secret of at least thirty-two characters"})


def test_it_loads_with_the_steps_of_the_surface(pipeline: Pipeline) -> None:
    assert [step.step_id for step in pipeline.steps] == [
        "process-csv-payments-input",
        "await-payment-provider",
        "process-approved",
        "process-unapproved",
        "finalize-payment-output",
    ]
    assert isinstance(pipeline.steps[1], AwaitStep)


def test_the_csv_columns_are_those_of_the_surface(pipeline: Pipeline) -> None:
    (model,) = pipeline.output_type.arms
    assert isinstance(model, type)
    assert CsvRows(model).header == (b"csvId,recipient,amount,currency,status,message,reference,fee,conversationId\r\n")


def test_the_source_object_is_the_first_steps_input(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("ID,Recipient,Amount,Currency\n1,Ann,6730.3,EUR\n")
    read = pipeline.steps[0]
    assert isinstance(read, RunStep)
    file = read.input.validate_json(json.dumps(asdict(identify(path))))
    records = list(read.function(file))
    assert [record.csvPaymentsInputFilePath for record in records] == [str(path)]
    assert read.output.accepts(records[0])


def test_a_bad_file_is_not_tried_again(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("ID,Recipient\n")
    read = pipeline.steps[0]
    assert isinstance(read, RunStep)
    file = read.input.validate_json(json.dumps({"path": str(tmp_path / "bad.csv")}))
    with pytest.raises(ValueError, match=r"bad\.csv, line 1: column Amount, Currency is missing") as caught:
        next(read.function(file))
    assert not read.retry.is_retryable(caught.value)
    assert read.retry.is_retryable(FileNotFoundError())


def imported(file: Path) -> Iterator[str]:
    """Modules that a file imports, by their full names."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_it_is_a_project_like_a_users_which_needs_pydantic_alone() -> None:
    names = {name.partition(".")[0] for file in PROJECT.glob("*.py") for name in imported(file)}
    own = {file.stem for file in PROJECT.glob("*.py")}
    assert names - own - sys.stdlib_module_names == {"pydantic"}
    assert not (PROJECT / "__init__.py").exists()


def test_nothing_of_ours_imports_it() -> None:
    root = PROJECT.parents[1]
    files = [
        file
        for package in ("connectors", "schemas", "state", "streams", "topologies", "bench", "tests")
        for file in (root / package).rglob("*.py")
    ]
    assert [str(file) for file in files for name in imported(file) if name.startswith("topologies.csv_payments")] == []
