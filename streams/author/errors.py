"""What the author's code can do wrong, as the engine sees it."""

from __future__ import annotations

from typing import Protocol

from pydantic import ValidationError

from schemas import limits
from schemas.errors import StepError
from topologies.pipeline.payloads import Misfit


class Retry(Protocol):
    """When a step is tried again; a `topologies.pipeline.steps.Retry`."""

    def is_retryable(self, error: BaseException) -> bool:
        """Whether it is, after this error."""


class Failing(Protocol):
    """A step as far as its failures are concerned; a `topologies.pipeline.steps.RunStep`."""

    @property
    def step_id(self) -> str:
        """Its name in kebab case."""

    @property
    def retry(self) -> Retry:
        """When it is tried again."""


class StepFailed(StepError):
    """The author's function raised.

    Attributes:
        code: Of a `StepError` its own; WRONG_OUTPUT for a value of another type; else STEP_FAILED.
        retryable: What the step's `retry` and the error say.
        step_id: The step whose function it was.
    """

    def __init__(self, step: Failing, error: Exception) -> None:
        self.code = _code(error)
        self.step_id = step.step_id
        own = getattr(error, "retryable", True) if isinstance(error, StepError) else True
        self.retryable = own and step.retry.is_retryable(error)
        super().__init__(f"step {step.step_id}: {type(error).__name__}: {error}")


class AggregateTooLarge(StepError):
    """More items than an aggregate may hold."""

    code = "AGGREGATE_TOO_LARGE"
    retryable = False

    @classmethod
    def of(cls, step_id: str) -> AggregateTooLarge:
        """Of a step."""
        return cls(
            f"step {step_id} takes more than {limits.AGGREGATE_ITEMS_MAX} items as one list (limits.AGGREGATE_ITEMS_MAX); "
            "split the flow into smaller awaits, or hand off to another pipeline by a checkpoint"
        )


class OutputTooLarge(StepError):
    """A step's output is larger than a record may be."""

    code = "OUTPUT_TOO_LARGE"
    retryable = False


def _code(error: Exception) -> str:
    if isinstance(error, StepError):
        return error.code
    return "WRONG_OUTPUT" if isinstance(error, (ValidationError, Misfit)) else "STEP_FAILED"


def describe_error(error: BaseException) -> tuple[str, str, bool]:
    """An outcome's code, message, and whether another attempt may help."""
    if isinstance(error, StepError):
        return error.code, str(error), error.retryable
    if isinstance(error, Misfit):
        return "WRONG_OUTPUT", f"a step gave what is {error}", True
    return "STEP_FAILED", f"{type(error).__name__}: {error}", True


def failed_step_of(error: BaseException) -> str | None:
    """The id of the step at which an item failed; None: nobody knows, as when the whole suffix took too long."""
    return getattr(error, "step_id", None)


class StepProcessEnded(StepError):
    """The author's code ended the process that it ran in."""

    code = "STEP_PROCESS_ENDED"
