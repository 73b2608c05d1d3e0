"""One picture of a run: rates against the limit, where CPU goes, where latency goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.results import Results

COLOURS = {"core": "#1f6f8b", "steps": "#6f5fa8", "ingress": "#8fb339", "provider": "#d9a441", "broker": "#b0b0b0"}


def draw(results: Results, path: Path) -> bool:
    """Draw what there is into a PNG; False: nothing to draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [_rates, _cpu] if any(item.case.broker == "kafka" for item in results.throughput) else []
    panels += [_hops] if results.latency else []
    panels += [_burst] if results.burst is not None else []
    if not panels:
        return False
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 1.5 + 4 * len(panels)), squeeze=False)
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        panel(results, axis)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _rates(results: Results, axis: Any) -> None:
    items = [item for item in results.throughput if item.case.broker == "kafka"][::-1]
    names = [item.case.name.removeprefix("kafka, ") for item in items]
    bars = axis.barh(names, [item.rows_per_s for item in items], color=COLOURS["core"])
    axis.bar_label(bars, labels=[_label(results, item.rows_per_s) for item in items], padding=3, fontsize=8)
    limit = results.limit_rows_per_s
    if limit:
        for share in (0.1, 0.2, 0.25):
            axis.axvline(limit * share, color="#888888", linewidth=0.8, linestyle="--")
            axis.annotate(
                f"{share:g} of the limit",
                (limit * share, 1.0),
                xycoords=("data", "axes fraction"),
                fontsize=7,
                rotation=30,
            )
    axis.set_xlabel("rows/s" + (f" (limit {limit:,.0f})" if limit else ""))


def _label(results: Results, rate: float) -> str:
    limit = results.limit_rows_per_s
    return f"{rate:,.0f}" + (f" = {rate / limit:.2f}" if limit else "")


def _cpu(results: Results, axis: Any) -> None:
    items = [item for item in results.throughput if item.case.broker == "kafka"][::-1]
    names = [item.case.name.removeprefix("kafka, ") for item in items]
    left = [0.0] * len(items)
    for part, colour in COLOURS.items():
        used = [item.cpu_us_per_row.get(part, 0.0) for item in items]
        axis.barh(names, used, left=left, color=colour, label=part)
        left = [before + more for before, more in zip(left, used, strict=True)]
    axis.set_xlabel("CPU, us a row")
    axis.legend(fontsize=8)


def _hops(results: Results, axis: Any) -> None:
    names = [f"{found.in_flight} in flight" for found in results.latency]
    left = [0.0] * len(names)
    for number in range(len(results.latency[0].hops)):
        hops = [found.hops[number] for found in results.latency]
        spent = [max(hop.mean_ms, 0.0) for hop in hops]
        axis.barh(names, spent, left=left, label=hops[0].name)
        left = [before + more for before, more in zip(left, spent, strict=True)]
    axis.set_xlabel("mean ms by hop, dispatch to committed output")
    axis.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _burst(results: Results, axis: Any) -> None:
    burst = results.burst
    assert burst is not None
    lines = (burst.burst, burst.quiet)
    bars = axis.barh([line.name for line in lines], [line.p99_ms for line in lines], color=COLOURS["core"], label="p99")
    axis.barh([line.name for line in lines], [line.p50_ms for line in lines], color=COLOURS["ingress"], label="p50")
    axis.bar_label(bars, fmt="%.0f ms", padding=3, fontsize=8)
    axis.set_xlabel(f"request to resume beside {burst.deadlines:,} deadlines at once, ms")
    axis.legend(fontsize=8)
