"""A pipeline of one question, for many small executions; written into a folder, as an author's project would be."""

from __future__ import annotations

from pathlib import Path

MODULE = "bench_question"
TYPES = '''"""Payload types."""

from pydantic import BaseModel


class Question(BaseModel):
    number: int


class ExecutionOutcome(BaseModel):
    text: str
'''
PIPELINE = """\
app: bench-question
steps:
  - name: Ask
    kind: await
    input: bench_question:Question
    output: bench_question:ExecutionOutcome
    timeout: PT1H
    await:
      correlation: {strategy: interactionId}
      transport: {type: kafka, request: {topic: "{app}.questions"}, response: {topic: "{app}.answers"}}
kafka: {partitions: 12, replicationFactor: 1}
"""


def write(folder: Path) -> Path:
    """The project; returns its pipeline file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{MODULE}.py").write_text(TYPES, encoding="utf-8")
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    return path
