"""Low-load latency: from the dispatch of an item to the stored result of its suffix, provider included."""

from __future__ import annotations

import os

from schemas import facts
from tests.acceptance.ground import AWAIT, Ground
from tests.acceptance.registry import Checks, line

P50_MS_MAX = 60
P99_MS_MAX = 250
WARM_UP_ITEMS = 20


def _percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


ROUNDS_MAX = 3
"""A busy machine gets another chance; the best round counts, and all are told."""


@line(
    "latency",
    "Dispatch to resume: p50 under 60 ms and p99 under 250 ms with one in flight; 16 in flight under 2 times that",
)
def latency(ground: Ground, checks: Checks) -> None:
    """From the facts' times: from the decision to dispatch to the decision to store the suffix's output."""
    for window, rows, factor in ((1, ground.size(300, 120), 1), (16, ground.size(3_000, 600), 2)):
        p50_max, p99_max = P50_MS_MAX * factor, P99_MS_MAX * factor
        rounds: list[tuple[int, int]] = []
        while len(rounds) < ROUNDS_MAX and not any(p50 < p50_max and p99 < p99_max for p50, p99 in rounds):
            took = _round(ground, window, rows)
            rounds.append((_percentile(took, 0.5), _percentile(took, 0.99)))
        checks.that(
            f"{window} in flight: p50 under {p50_max} ms, p99 under {p99_max} ms",
            any(p50 < p50_max and p99 < p99_max for p50, p99 in rounds),
            ", ".join(f"p50 {p50} ms, p99 {p99} ms" for p50, p99 in rounds)
            + f" ({rows - WARM_UP_ITEMS} items a round, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs)",
        )


def _round(ground: Ground, window: int, rows: int) -> list[int]:
    """Milliseconds of each item after the first few."""
    path = ground.payments(rows, name=f"latency_{rows}.csv")
    app = ground.app(f"latency-{window}", overrides=(f"{AWAIT}.await.live.window={window}",))
    app.provider()
    app.worker("core", roles="core,continuation", state_dir=app.folder / "state-core")
    app.worker("ingress", roles="ingress", state_dir=app.folder / "state-ingress")
    app.wait([app.submit(path)])
    sent: dict[int, int] = {}
    took: list[int] = []
    for fact in app.facts():
        if isinstance(fact, facts.BoundaryInteractionDispatched) and fact.item_index is not None:
            sent[fact.item_index] = fact.at_ms
        elif isinstance(fact, facts.ContinuationCompleted) and fact.item_index >= WARM_UP_ITEMS:
            took.append(fact.at_ms - sent[fact.item_index])
    app.close()
    return took
