"""Low-load latency: from the dispatch of an item to the stored result of its suffix, provider included."""

from __future__ import annotations

import time

from schemas import facts
from tests.acceptance.ground import AWAIT, Ground
from tests.acceptance.registry import Checks, line

P50_MS_MAX = 60
P99_MS_MAX = 250
WARM_UP_ITEMS = 20


def _percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@line(
    "latency",
    "Dispatch to resume: p50 under 60 ms and p99 under 250 ms with one in flight; 16 in flight under 2 times that",
)
def latency(ground: Ground, checks: Checks) -> None:
    """From the facts' times: from the decision to dispatch to the decision to store the suffix's output."""
    for window, rows, factor in ((1, ground.size(400, 120), 1), (16, ground.size(3_000, 600), 2)):
        path = ground.payments(rows, name=f"latency_{rows}.csv")
        app = ground.app(f"latency-{window}", overrides=(f"{AWAIT}.await.live.window={window}",))
        app.provider()
        app.worker("core", roles="core,continuation", state_dir=app.folder / "state-core")
        app.worker("ingress", roles="ingress", state_dir=app.folder / "state-ingress")
        began_s = time.monotonic()
        app.wait([app.submit(path)])
        seconds = time.monotonic() - began_s
        sent: dict[int, int] = {}
        took: list[int] = []
        for fact in app.facts():
            if isinstance(fact, facts.BoundaryInteractionDispatched) and fact.item_index is not None:
                sent[fact.item_index] = fact.at_ms
            elif isinstance(fact, facts.ContinuationCompleted) and fact.item_index >= WARM_UP_ITEMS:
                took.append(fact.at_ms - sent[fact.item_index])
        p50, p99 = _percentile(took, 0.5), _percentile(took, 0.99)
        checks.that(
            f"{window} in flight: p50 under {P50_MS_MAX * factor} ms, p99 under {P99_MS_MAX * factor} ms",
            p50 < P50_MS_MAX * factor and p99 < P99_MS_MAX * factor,
            f"p50 {p50} ms, p99 {p99} ms, most {max(took)} ms of {len(took)} items in {seconds:.1f} s",
        )
        app.close()
