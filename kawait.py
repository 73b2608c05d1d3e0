"""The whole Python API for pipeline authors; everything else is internal (SURFACE 'Python').

    Projector            makes a step's output from the stored request and what the outside party is trusted with
    Completion           what a projector knows about the answer besides its payload
    TopologyTestDriver   runs a pipeline in a test, without Kafka, with time moved by hand
    submit, reply        start an execution, answer a request, from your own Python process

What these raise:

    KawaitError          any of the following
    UsageError           a value, a name or a setting is wrong; calling again does not help
    PipelineError        the pipeline file is wrong; `problems` has every place. A UsageError
    PeerError            what was given as an interaction id is none
    LogUnavailable       the broker did not answer in time; calling again is harmless

Each is imported when it is first asked for: a module of steps that wants `Projector` does not pay for a Kafka client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schemas.errors import KawaitError, LogUnavailable, PeerError, PipelineError, UsageError
    from streams.doors.api import reply, submit
    from streams.testing.driver import TopologyTestDriver
    from topologies.pipeline.projection import Completion, Projector

__all__ = [
    "Completion",
    "KawaitError",
    "LogUnavailable",
    "PeerError",
    "PipelineError",
    "Projector",
    "TopologyTestDriver",
    "UsageError",
    "reply",
    "submit",
]


def main() -> None:
    """The command line: the console script `kawait`, and `python -m kawait`."""
    from streams.__main__ import main as run

    run()


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        match name:
            case "reply" | "submit":
                from streams.doors import api as home
            case "TopologyTestDriver":
                from streams.testing import driver as home
            case "Completion" | "Projector":
                from topologies.pipeline import projection as home
            case _ if name in __all__:
                from schemas import errors as home
            case _:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(home, name)

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__])


if __name__ == "__main__":
    main()
