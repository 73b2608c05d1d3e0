"""`onTimeout: {skip: true}` needs a stream to leave the item out of."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import PipelineError
from topologies.reading.loading import load_pipeline


def test_skip_on_a_scalar_await_is_refused(tmp_path: Path) -> None:
    """Its deadline would have nothing to go on with."""
    (tmp_path / "skip_types.py").write_text(
        "from pydantic import BaseModel\nclass A(BaseModel):\n    a: str\n", encoding="utf-8"
    )
    (tmp_path / "pipeline.yaml").write_text(
        "app: skipping\n"
        "steps:\n"
        "  - {name: Ask, kind: await, cardinality: ONE_TO_ONE, input: 'skip_types:A', output: 'skip_types:A', timeout: PT1M,\n"
        "     onTimeout: {skip: true},\n"
        "     await: {transport: {type: kafka, request: {topic: q}, response: {topic: r}}}}\n",
        encoding="utf-8",
    )
    with pytest.raises(PipelineError) as refused:
        load_pipeline(tmp_path / "pipeline.yaml", environ={})
    assert ["onTimeout" in problem.where for problem in refused.value.problems] == [True]
