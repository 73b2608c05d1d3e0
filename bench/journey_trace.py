"""Counts what one awaited row calls; run by `bench.journey` in a process of its own, against any tree of this project.

    python -P bench/journey_trace.py TREE        (with TREE as PYTHONPATH; prints JSON)

Of the measured tree it imports `kawait` alone, which every layout has, and the demo's pipeline file. Everything runs on one thread, as the
test driver does, and on one partition, so that two runs count the same.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import kawait

FOLDERS = ("connectors", "schemas", "state", "streams", "topologies")
PREFIXES = re.compile(r"^(?:src/)?(?:kawait/)?")
"""Where those folders may lie below the root of a tree."""
LEFT_OUT = re.compile(
    r"streams/(?:memory_log|memory_broker|clock|metrics|testing)\.py|state/memory\.py"  # before the modules had rooms
    r"|streams/(?:log/memory|testing|demo)/.*|streams/telemetry/metrics\.py|state/tables/memory\.py"
)
"""Stand-ins for the broker and the store, the driver, the outside party, and what is not logic: clock and metrics."""
PIPELINE = "topologies/csv_payments/pipeline.yaml"
OVERRIDES = {True: (), False: ("steps.await-payment-provider.await.live=false",)}
ANSWER = {"status": "Complete", "reference": "101", "message": "made", "fee": "1.01", "statusCode": 1000}
WARM_UP_ROWS = (300, 3)
SIZES = (200, 1_200)
"""Rows in two files: the difference is what a row costs in full batches."""
LISTED = (2, 3)
"""The same for the list of stops: what the larger run calls and the smaller does not, in order."""
ALONE_ROWS = 3


class Stop(NamedTuple):
    """One call of a function of ours."""

    file: str
    function: str


class Count(NamedTuple):
    """Of one trace, or for one row.

    Attributes:
        changes: From one called function to the next, how often the file is another.
        moves: The same with every return to a caller counted too.
    """

    calls: float
    changes: float
    moves: float

    def per(self, less: Count, rows: int) -> Count:
        """What a row adds, from two runs of different size."""
        return Count(*(round((mine - other) / rows, 2) for mine, other in zip(self, less, strict=True)))

    def plus(self, other: Count) -> Count:
        """Two parts of a journey together."""
        return Count(*(round(one + two, 2) for one, two in zip(self, other, strict=True)))


class Trace:
    """Calls of our functions while it is entered."""

    def __init__(self, tree: Path) -> None:
        self.stops: list[Stop] = []
        self._visited: list[str] = []
        self._root = f"{tree}/"
        self._files: dict[CodeType, str] = {}

    def __enter__(self) -> Self:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (file := self._file_of(frame.f_code)):
            self._visited.append(file)
            name = frame.f_code.co_name
            if name[0] != "<" or name == "<lambda>":  # a comprehension is no call
                self.stops.append(Stop(file, frame.f_code.co_qualname))
        elif event == "return" and self._file_of(frame.f_code):
            caller = frame.f_back
            while caller is not None and not self._file_of(caller.f_code):
                caller = caller.f_back
            if caller is not None:
                self._visited.append(self._file_of(caller.f_code))

    def _file_of(self, code: CodeType) -> str:
        """The file of a counted function, from the root of its tree; empty: not counted."""
        file = self._files.get(code)
        if file is None:
            file = self._files[code] = counted_file(code.co_filename, self._root)
        return file

    def count(self) -> Count:
        """Of the whole trace."""
        return Count(len(self.stops), changes_in(stop.file for stop in self.stops), changes_in(self._visited))

    def by_file(self) -> dict[str, Counter[str]]:
        """File -> how many calls it got, and how often the trace came to it from another."""
        entered = Counter(file for file, _ in groupby(stop.file for stop in self.stops))
        return {"calls": Counter(stop.file for stop in self.stops), "entered": entered}


def counted_file(path: str, root: str) -> str:
    """The path from the root of a tree without what is packed around our folders, or nothing when its functions do not count."""
    if not path.startswith(root):
        return ""
    file = PREFIXES.sub("", path.removeprefix(root))
    return file if file.partition("/")[0] in FOLDERS and not LEFT_OUT.fullmatch(file) else ""


def changes_in(files: Iterable[str]) -> int:
    """How often a file differs from the one before it."""
    return sum(one != other for one, other in pairwise(files))


def added(fewer: Sequence[Stop], more: Sequence[Stop]) -> list[Stop]:
    """What a larger run calls and a smaller does not, in order."""
    steps = SequenceMatcher(None, fewer, more, autojunk=False).get_opcodes()
    return [stop for tag, _, _, start, end in steps if tag in {"insert", "replace"} for stop in more[start:end]]


class Rows:
    """csv-payments on a driver, run file by file.

    Args:
        tree: Whose code is measured.
        folder: For files.
    """

    def __init__(self, tree: Path, folder: Path, *, live: bool) -> None:
        self._tree = tree
        self._folder = folder
        self._driver = kawait.TopologyTestDriver(
            tree / PIPELINE,
            overrides=(f"output.location={folder / 'out'}", "kafka.partitions=1", *OVERRIDES[live]),
            environ={"KAWAIT_TOKEN_K1": "k" * 32},
        )

    def together(self, rows: int) -> tuple[Trace, Trace]:
        """A file whose rows are answered at once: the part up to the questions, and the part from the answers on."""
        asked, answered = Trace(self._tree), Trace(self._tree)
        with asked:
            execution, requests = self._ask(rows)
        for request in requests:
            self._driver.complete(request, ANSWER)
        with answered:
            self._driver.run()
        assert self._driver.status(execution) == "SUCCEEDED", self._driver.status(execution)
        return asked, answered

    def alone(self) -> Count:
        """A row that is answered while no other is: from its answer until all is at rest, less what rest costs."""
        trace, rest = Trace(self._tree), Trace(self._tree)
        execution, requests = self._ask(ALONE_ROWS)
        for number, request in enumerate(requests):
            self._driver.complete(request, ANSWER)
            with trace if number == 1 else Trace(self._tree):
                self._driver.run()
            with rest if number == 1 else Trace(self._tree):
                self._driver.run()
        assert self._driver.status(execution) == "SUCCEEDED", self._driver.status(execution)
        return trace.count().per(rest.count(), 1)

    def _ask(self, rows: int) -> tuple[str, list[Any]]:
        """Submit a file and run until every row's question is sent."""
        path = self._folder / f"payments-{rows}-{len(list(self._folder.glob('*.csv')))}.csv"
        lines = [f"{number},Ann Example,{number}.25,EUR" for number in range(1, rows + 1)]
        path.write_text("\n".join(["ID,Recipient,Amount,Currency", *lines, ""]), encoding="utf-8")
        execution = self._driver.submit(file=path)
        self._driver.run()
        requests = self._driver.new_requests()
        assert len(requests) == rows, f"{len(requests)} of {rows} rows were asked about"
        return execution, requests

    def close(self) -> None:
        """Stop the driver."""
        self._driver.close()


def measured(tree: Path, *, live: bool) -> dict[str, Any]:
    """Every count of one path."""
    with tempfile.TemporaryDirectory(prefix="kawait-journey-") as name:
        rows = Rows(tree, Path(name), live=live)
        for count in WARM_UP_ROWS:
            rows.together(count)
        small, large = (rows.together(count) for count in SIZES)
        fewer, more = (rows.together(count)[1].stops for count in LISTED)
        alone = rows.alone()
        rows.close()
    question, answer = (
        after.count().per(before.count(), SIZES[1] - SIZES[0]) for before, after in zip(small, large, strict=True)
    )
    return {
        "answer": answer._asdict(),
        "whole": question.plus(answer)._asdict(),
        "alone": alone._asdict(),
        "files": _files_per_row(small[1], large[1]),
        "stops": [list(stop) for stop in added(fewer, more)],
    }


def _files_per_row(small: Trace, large: Trace) -> dict[str, dict[str, float]]:
    """File -> calls of a row and how often it enters; files that a row does not come to are left out."""
    rows = SIZES[1] - SIZES[0]
    before, after = small.by_file(), large.by_file()
    return {
        file: {what: round((after[what][file] - before[what][file]) / rows, 2) for what in after}
        for file in sorted(after["calls"])
        if after["calls"][file] - before["calls"][file] > rows / 2
    }


def main() -> None:
    """Count both paths and print them."""
    tree = Path(sys.argv[1]).resolve()
    assert Path(kawait.__file__ or "").resolve().is_relative_to(tree), f"kawait comes from {kawait.__file__}"
    found = {"live": measured(tree, live=True), "suspending": measured(tree, live=False)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
