"""What makes a release, and what does not (DECISIONS 1)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from topologies.reading.loading import load_pipeline

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "topologies" / "csv_payments" / "pipeline.yaml"
ENVIRON = {"KAWAIT_TOKEN_K1": "k" * 32}
AWAIT = "steps.await-payment-provider"


def release(*overrides: str) -> str:
    return load_pipeline(DEMO, environ=ENVIRON, overrides=overrides).release


@pytest.mark.parametrize(
    "override",
    [
        f"{AWAIT}.timeout=PT7M",
        f"{AWAIT}.await.live.window=64",
        f"{AWAIT}.owner=somebody-else",
        "retention.executions=P90D",
        "output.location=elsewhere/",
        "input.location=elsewhere/",
        "kafka.partitions=7",
    ],
)
def test_tunables_and_places_are_no_part_of_it(override: str) -> None:
    assert release(override) == release()


@pytest.mark.parametrize(
    "override",
    [
        f"{AWAIT}.idempotencyKeyFields=[csvId]",
        f"{AWAIT}.await.transport.response.topic=elsewhere",
        f"{AWAIT}.name=Await Another Provider",
        "steps.finalize-payment-output.run=steps:approved",
    ],
)
def test_what_decides_executions_is(override: str) -> None:
    assert release(override) != release()


def test_another_process_finds_the_same_one() -> None:
    script = "from tests.pipeline.test_release import release\nprint(release())\n"
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert told == {release()}
    assert len(release()) == 12
