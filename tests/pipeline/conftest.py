"""A pipeline to change: the example of SURFACE, and a loader that says what is wrong with the changed text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from schemas.errors import PipelineError, Problem
from topologies.pipeline.model import Pipeline
from topologies.reading.loading import load_pipeline

FIXTURES = Path(__file__).parent / "fixtures"
PAYMENTS = FIXTURES / "payments" / "pipeline.yaml"
ORDERS = FIXTURES / "orders" / "pipeline.yaml"
SECRET = "correct horse battery staple"
ENVIRON = {"KAWAIT_TOKEN_K1": SECRET}

Load = Callable[..., Pipeline]
Problems = Callable[..., list[Problem]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a text with the modules of the payments fixture."""

    def load_text(
        text: str,
        *,
        environ: Mapping[str, str] = ENVIRON,
        overrides: tuple[str, ...] = (),
        app: str | None = None,
        app_dir: Path = PAYMENTS.parent,
    ) -> Pipeline:
        path = tmp_path / "pipeline.yaml"
        path.write_text(text)
        return load_pipeline(path, environ=environ, overrides=overrides, app=app, app_dir=app_dir)

    return load_text


@pytest.fixture
def problems(load: Load) -> Problems:
    """The problems of a text; it must have some."""

    def problems_of(text: str, **options: object) -> list[Problem]:
        with pytest.raises(PipelineError) as caught:
            load(text, **options)
        return caught.value.problems

    return problems_of


@pytest.fixture
def payments() -> str:
    return PAYMENTS.read_text()
