"""A small pipeline on a memory log for the command line to look at, and logs that are put back after each test."""

from __future__ import annotations

import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result

from streams.cli import options
from streams.cli.root import cli
from streams.testing.driver import TopologyTestDriver

PIPELINE = """
app: approvals
steps:
  - name: Ask Manager
    kind: await
    input: shop:Order
    output: shop:Decision
    timeout: PT1H
    owner: sales
    await:
      transport: {type: kafka, request: {topic: "{app}.asked"}, response: {topic: "{app}.answered"}}
  - {name: Write Letter, input: shop:Decision, output: shop:Letter, run: shop:write, retry: {attempts: 1}}
kafka: {partitions: 3}
"""

SHOP = """
from pydantic import BaseModel

class Order(BaseModel):
    orderId: str

class Decision(BaseModel):
    approved: bool

class Letter(BaseModel):
    text: str

def write(decision: Decision) -> Letter:
    if not decision.approved:
        raise ValueError("we write no letters of refusal")
    return Letter(text="yes")
"""

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No flag comes from outside, and the process's logs and thread switching are as before."""
    for name in ("KAWAIT_BOOTSTRAP", "KAWAIT_APP", "KAWAIT_JSON", "KAWAIT_TOKEN_K1", "KAWAIT_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level, interval = list(root.handlers), root.level, sys.getswitchinterval()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.setswitchinterval(interval)
    structlog.reset_defaults()


@pytest.fixture
def run() -> Run:
    """Run `kawait` in this process."""

    def invoke(*arguments: object, **more: Any) -> Result:
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False, **more)

    return invoke


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """The file of a pipeline with one scalar await."""
    folder = tmp_path / "approvals"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "pipeline.yaml").write_text(textwrap.dedent(PIPELINE))
    return folder / "pipeline.yaml"


@pytest.fixture
def driver(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> TopologyTestDriver:
    """The pipeline running on a memory log, which is the broker of every command in the test."""
    started = TopologyTestDriver(pipeline)
    monkeypatch.setattr(options, "open_log", lambda *_: started.log)
    return started
