"""The broker restarts, loses the replies of commits, is away at the start. Each line brings its own broker."""

from __future__ import annotations

import json
import time

from streams.broker.node import ThrowawayBroker
from streams.demo.run import PIPELINE
from tests.acceptance.ground import Ground, Watch
from tests.acceptance.proxy import Loss, Proxy, free_port, listener_properties
from tests.acceptance.registry import Checks, line

SUBMIT_TIMEOUT_S = 4.0


@line("broker_faults", "The broker is restarted during load: work goes on by itself, nothing lost or doubled")
def restarted(ground: Ground, checks: Checks) -> None:
    """Once in good order, once by kill -9."""
    rows = ground.size(20_000, 4_000)
    path = ground.payments(rows)
    expected = ground.undisturbed([path])
    with ThrowawayBroker() as broker:
        for how in ("SIGTERM", "SIGKILL"):
            app = ground.app("restarted", bootstrap=broker.bootstrap)
            app.provider()
            worker = app.worker()
            name = app.submit(path)
            app.reach(rows * 3 // 4)
            if how == "SIGKILL":
                broker.kill()
            began_s = time.monotonic()
            broker.restart()
            back_s = time.monotonic() - began_s
            watch = Watch(app, [name])
            told = app.wait([name])
            watch.stop()
            worker.check()
            held, figures = app.judge(rows, [path], told, expected)
            after_s = time.monotonic() - began_s
            checks.that(
                f"restart by {how} during {rows} rows",
                held,
                f"{figures}; the broker was back after {back_s:.1f} s, all done after {after_s:.1f} s",
            )
            app.close()


@line("broker_faults", "Commit replies lost (a proxy between worker and broker drops them): no second request")
def replies_lost(ground: Ground, checks: Checks) -> None:
    """`cut`: the connection breaks in place of the reply. `hold`: the reply never comes, nor those of the next tries."""
    rows = ground.size(5_000, 2_000)
    path = ground.payments(rows)
    expected = ground.undisturbed([path])
    proxy_port, own_port = free_port(), free_port()
    ways: tuple[tuple[Loss, int, int], ...] = (("cut", 7, 10_000), ("hold", 1, 8))
    with ThrowawayBroker(properties=listener_properties(proxy_port, own_port)) as broker:
        proxy = Proxy(proxy_port, own_port)
        try:
            for loss, every, times in ways:
                app = ground.app(f"lost-{loss}", bootstrap=broker.bootstrap)
                app.provider()
                app.worker(bootstrap=proxy.bootstrap)
                began_s = time.monotonic()
                name = app.submit(path)
                app.reach(rows // 4)
                proxy.lost, proxy.every, proxy.loss = 0, every, loss

                def enough(most: int = times) -> None:
                    if proxy.lost >= most:
                        proxy.loss = "none"

                told = app.wait([name], turn=enough)
                proxy.loss = "none"
                seconds = time.monotonic() - began_s
                held, figures = app.judge(rows, [path], told, expected)
                unknown = app.logged("worker-w1").count("commit outcome unknown")
                checks.that(
                    f"{'connections break' if loss == 'cut' else 'replies never come'}: one request and one output a row",
                    held and proxy.lost > 0,
                    f"{figures}; {proxy.lost} replies lost, {unknown} commits unknown to the worker, {seconds:.1f} s",
                )
                app.close()
        finally:
            proxy.close()


@line(
    "broker_faults",
    "Broker away at start: clear waiting message, then it works; `kawait submit` gives an error after its timeout",
)
def away(ground: Ground, checks: Checks) -> None:
    """The worker waits as long as it takes; a submission does not."""
    path = ground.payments(500)
    expected = ground.undisturbed([path])
    with ThrowawayBroker() as broker:
        app = ground.app("away", bootstrap=broker.bootstrap)
        broker.kill()
        worker = app.worker(wait=False)
        app.provider()
        app.until(lambda: "waiting for the broker" in app.logged("worker-w1"), "the waiting message")
        said = next(text for text in app.logged("worker-w1").splitlines() if "waiting for the broker" in text)
        checks.that("the worker says that it waits, and for what", broker.bootstrap in said, said.strip()[:200])
        began_s = time.monotonic()
        submission = ("submit", str(PIPELINE), *app.arguments()[1:], "--input", str(path))
        refused = ground.kawait(*submission, "--timeout", f"{SUBMIT_TIMEOUT_S:g}", check=False, timeout_s=60)
        seconds = time.monotonic() - began_s
        checks.that(
            "`kawait submit --timeout` ends with an error in time",
            refused.returncode == 1
            and broker.bootstrap in refused.stderr
            and "Traceback" not in refused.stderr
            and seconds < SUBMIT_TIMEOUT_S + 6,
            f"exit code {refused.returncode} after {seconds:.1f} s: {refused.stderr.strip()[-200:]}",
        )
        broker.restart()
        worker.wait_ready(time.monotonic() + 60)
        paid = ground.kawait(*submission, "--wait", "--json", timeout_s=120)
        outcome = json.loads(paid.stdout.strip().splitlines()[-1])
        made = app.output / f"{path.name}.out"
        checks.that(
            "then it works",
            outcome["status"] == "SUCCEEDED" and made.read_bytes() == expected[made.name],
            outcome["status"],
        )
        app.close()
