"""Values of forty types: what is sent is what the author's value means, what is admitted can be read back, or the field is named and refused."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import msgspec

from schemas.envelopes import ExecutionOutcome
from schemas.errors import KawaitError
from streams.doors.submissions import command_for_payload
from tests.acceptance.ground import App, Ground
from tests.acceptance.outside import Asked, Outside
from tests.acceptance.registry import Checks, line
from tests.acceptance.value_draws import DOUBTFUL, DRAWS, NO_ANSWER
from topologies.pipeline.model import Pipeline
from topologies.reading.choice import PipelineChoice

PROJECT = Path(__file__).parent / "projects" / "values"
LEFT_OUT = "left_out.txt"
SUSPENDING = ("steps.ask.await.live=false",)
SMALL_WINDOW = ("steps.ask.await.live.window=256",)
HOSTILE_EVERY = 10
"""One of so many requests gets an answer first that must be refused."""
DOUBT_S = 30
SUBMISSIONS = 1_000
KILLED = "after kill -9"
KILL_SHARE = 0.4


class Project:
    """The author's project, copied, without the types that are refused when the pipeline is read."""

    def __init__(self, ground: Ground) -> None:
        self.folder = self._copied(ground.folder / "values")
        self.samples = self._module()
        self.refused = self._refused(ground)
        (self.folder / LEFT_OUT).write_text("\n".join(self.refused))

    @staticmethod
    def _copied(folder: Path) -> Path:
        shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        return folder

    def _module(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("acceptance_samples", self.folder / "samples.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def _refused(self, ground: Ground) -> dict[str, str]:
        """Type -> why a pipeline of it alone is refused; asked in another folder, as its modules stay loaded."""
        found: dict[str, str] = {}
        folder = self._copied(ground.folder / "values-alone")
        whole = (folder / "pipeline.yaml").read_text()
        for name in self.samples.FIELDS:
            path = folder / f"only_{name}.yaml"
            path.write_text(whole.replace("samples:Sample", f"samples:Sample_{name}"))
            try:
                PipelineChoice(path=path, app="values").load(ground.environ)
            except KawaitError as error:
                found[name] = str(error)
        return found

    def said(self, kind: str, index: int, expression: str) -> str:
        """What the author's value means."""
        return str(self.samples.said(self.samples.made(kind, index, expression)))

    def sent(self, request: Asked) -> str:
        """What a request means to whoever reads it by the type."""
        raw = bytes(request.request_payload)
        arm = self.samples.ARMS[json.loads(raw)["kind"]]
        return str(self.samples.said(arm.model_validate_json(raw)))


Line = tuple[str, int, str]
"""Kind, index, expression."""


class Played:
    """One run of the application: a file of samples, answered value for value."""

    def __init__(self, ground: Ground, project: Project, name: str, overrides: Sequence[str] = ()) -> None:
        self.app: App = ground.app(name, path=project.folder / "pipeline.yaml", overrides=overrides)
        self.project = project
        self.hostile = 0
        self._bad = random.Random(ground.seed)
        self.outside = Outside(self.app, self._answer)
        self.app.worker()

    def _answer(self, request: Asked) -> bytes:
        """The value again, its members in another order; sometimes after one that must be refused."""
        members = msgspec.json.decode(bytes(request.request_payload), type=dict[str, msgspec.Raw])
        kind = json.loads(bytes(members["kind"]))
        if kind in NO_ANSWER and (request.item_index or 0) % HOSTILE_EVERY == 0:
            wrong = {**members, f"f_{kind}": msgspec.Raw(self._bad.choice(NO_ANSWER[kind]).encode())}
            self.outside.send(request, msgspec.json.encode(wrong))
            self.hostile += 1
        return msgspec.json.encode(dict(reversed(members.items())))

    def submit(self, name: str, lines: Sequence[Line]) -> str:
        """Write a file of samples and submit it."""
        path = self.app.folder / name
        path.write_text("".join(f"{kind}\t{index}\t{expression}\n" for kind, index, expression in lines))
        return self.app.submit(path)

    def told(self, name: str) -> dict[int, str]:
        """Index -> text, as it was published."""
        path = self.app.output / f"{name}.out"
        if not path.exists():
            return {}
        with path.open(encoding="utf-8", newline="") as file:
            return {int(row["index"]): row["text"] for row in csv.DictReader(file)}


def _drawn(project: Project, count: int, chance: random.Random) -> list[Line]:
    kinds = sorted(set(DRAWS) - set(project.refused))
    found = []
    for index in range(count):
        kind = kinds[index] if index < len(kinds) else chance.choice(kinds)
        found.append((kind, index, DRAWS[kind](chance)))
    return found


@line(
    "values",
    "10,000 random payloads over 40 field types: sent and told again as meant, live, suspending and after kill -9; or a refusal that "
    "names the field; nothing admitted that cannot be read back",
)
def payloads(ground: Ground, checks: Checks) -> None:
    """Doubtful values have a file each, as one of them ends its execution."""
    project = Project(ground)
    unnamed = [name for name, why in project.refused.items() if f"f_{name}" not in why]
    types = len(project.samples.FIELDS)
    checks.that(
        f"{types} types of field: what cannot be said is refused when the pipeline is read, by name",
        not unnamed,
        f"refused: {', '.join(project.refused) or 'none'}" + (f"; without their names: {unnamed}" if unnamed else ""),
    )
    chance = random.Random(ground.seed)
    lines = _drawn(project, ground.size(3_330, 400), chance)
    expected = {index: project.said(kind, index, text) for kind, index, text in lines}
    live = Played(ground, project, "values-live")
    _doubtful(live, checks)
    _play(live, "live", lines, expected, checks)
    live.app.close()
    for way, overrides in (("suspending", SUSPENDING), (KILLED, SMALL_WINDOW)):
        played = Played(ground, project, f"values-{way.partition(' ')[0]}", overrides)
        _play(played, way, lines, expected, checks)
        played.app.close()


def _play(played: Played, way: str, lines: Sequence[Line], expected: dict[int, str], checks: Checks) -> None:
    app = played.app
    before = len(played.outside.take_all(0.2))
    execution = played.submit("samples.txt", lines)
    turn: Callable[[], None] = _killing(played, len(lines)) if way == KILLED else played.outside.turn
    told = app.wait([execution], turn=turn, timeout_s=120)[execution]
    starts = sum(child.name == "worker-w1" for child in app.children)
    sent = {
        request.item_index: played.project.sent(request)
        for request in played.outside.take_all()[before:]
        if request.execution_id == execution
    }
    wrong_sent = [index for index, text in expected.items() if sent.get(index) != text]
    found = played.told("samples.txt")
    wrong = [index for index, text in expected.items() if found.get(index) != text]
    kinds = Counter(lines[index][0] for index in wrong_sent + wrong)
    checks.that(
        f"{way}: {len(lines):,} payloads are sent and told again as they are meant",
        told.status == "SUCCEEDED" and not wrong_sent and not wrong and starts == (2 if way == KILLED else 1),
        f"{told.status} {told.error_code or ''} {(told.error_message or '')[:200]}; {len(wrong_sent)} sent otherwise, {len(wrong)} told otherwise "
        f"{dict(kinds.most_common(5))}",
    )
    reasons = Counter(refusal.reason for refusal in app.refusals())
    checks.that(
        f"{way}: answers that cannot be read back are refused, the good ones after them count",
        reasons == Counter({"wrong-shape": played.hostile}),
        f"{played.hostile} of them; refusals {dict(reasons)}",
    )


def _killing(played: Played, rows: int) -> Callable[[], None]:
    """Answer; when two rows of five have come to something, end the worker as a power cut would and start it again."""
    app = played.app
    before = sum(app.offsets(app.names.facts).values())
    killed = False

    def turn() -> None:
        nonlocal killed
        played.outside.turn()
        if not killed and sum(app.offsets(app.names.facts).values()) - before > 3 * rows * KILL_SHARE:
            killed = True
            app.kill(next(child for child in app.children if child.name == "worker-w1"))
            app.worker(wait=False)

    return turn


def _doubtful(played: Played, checks: Checks) -> None:
    """Each value in a file of its own: sent as meant, or refused by the name of its field and never asked about."""
    project = played.project
    cases = [
        (kind, number, expression)
        for kind, expressions in DOUBTFUL.items()
        if kind not in project.refused
        for number, expression in enumerate(expressions)
    ]
    ids = {
        played.submit(f"doubtful_{kind}_{number}.txt", [(kind, 0, text)]): (kind, number, text)
        for kind, number, text in cases
    }
    with contextlib.suppress(TimeoutError):  # one that does not end is a fault of its own
        played.app.wait(list(ids), turn=played.outside.turn, timeout_s=DOUBT_S)
    asked = {request.execution_id: request for request in played.outside.take_all()}
    ends: Counter[str] = Counter()
    faults: list[str] = []
    for execution, case in ids.items():
        end, fault = _end(played, case, played.app._told.get(execution), asked.get(execution))
        ends[end] += 1
        if fault:
            faults.append(f"{case[0]} {case[2]}: {fault}")
    checks.that(
        f"{len(ids)} doubtful values: sent as meant, or refused by the name of their field",
        not faults,
        f"{dict(ends)}" + (f"; {len(faults)} faults: {'; '.join(faults[:6])}" if faults else ""),
    )


def _end(played: Played, case: Line, told: ExecutionOutcome | None, request: Asked | None) -> tuple[str, str]:
    kind, number, expression = case
    if told is None:
        return "open", "its own value is refused as an answer" if request else "it never ended"
    try:
        meant = played.project.said(kind, 0, expression)
    except ValueError:
        return (
            "the author's own type refuses it",
            "" if told.status == "FAILED" and request is None else "it was asked about",
        )
    if told.status == "SUCCEEDED":
        if request is None or played.project.sent(request) != meant:
            return "sent", f"sent as {played.project.sent(request) if request else None}, not {meant}"
        found = played.told(f"doubtful_{kind}_{number}.txt").get(0)
        return "sent", "" if found == meant else f"told as {found}, not {meant}"
    if request is not None:
        return "refused", f"asked about first, then {told.error_code}: {(told.error_message or '')[:100]}"
    named = f"f_{kind}" in (told.error_message or "")
    return "refused", "" if named else f"{told.error_code} does not name the field: {(told.error_message or '')[:100]}"


# --- what people submit --------------------------------------------------------------------------------------------------------------


@line(
    "values", "What is submitted: digits as they were sent, equal values are one submission and different ones are not"
)
def submissions(ground: Ground, checks: Checks) -> None:
    """At the door, where a payload becomes a submission."""
    project = Project(ground)
    pipeline = PipelineChoice(path=project.folder / "submitted.yaml", app="submitted").load(ground.environ)
    chance = random.Random(ground.seed)
    faults: list[str] = []
    for number in range(SUBMISSIONS):
        faults += _submitted(pipeline, project, number, chance)
    checks.that(
        f"{SUBMISSIONS:,} submissions with decimals as numbers and as text, written in two ways each",
        not faults,
        f"{len(faults)} faults: {'; '.join(faults[:3])}" if faults else "all digits kept",
    )
    unsaid: list[str] = []
    for field, raw in (
        ("f_float", "1e999"),
        ("f_float", '"nan"'),
        ("f_float", "NaN"),
        ("f_decimal", '"NaN"'),
        ("f_int", "1e999"),
    ):
        members = {**_members(0, chance), field: raw}
        try:
            command_for_payload(pipeline, _written(members))
        except KawaitError as error:
            if field not in str(error):
                unsaid.append(f"{field} {raw}: {error}")
        else:
            unsaid.append(f"{field} {raw} was taken")
    checks.that("what is no number is refused by the name of its field", not unsaid, "; ".join(unsaid))


def _members(number: int, chance: random.Random) -> dict[str, str]:
    """Field -> JSON; numbers keep every digit."""
    digits = str(chance.randrange(10**16, 10**20))
    amount = chance.choice((f"{digits}.89", f"0.{digits}", f"{digits}", f"{number}.10"))
    return {
        "id": f'"s-{number}"',
        "f_decimal": amount,
        "f_money": chance.choice((f"{number}.50", f'"{number}.50"')),
        "f_float": chance.choice(("0.1", "1e308", "2.5")),
        "f_int": chance.choice((digits, str(10**30 + number))),
        "f_list": f'[{amount}, "{amount}", {number}]',
        "f_map": f'{{"a": {amount}, "b": null}}',
    }


def _written(members: dict[str, str]) -> bytes:
    return ("{" + ", ".join(f'"{name}": {raw}' for name, raw in members.items()) + "}").encode()


def _submitted(pipeline: Pipeline, project: Project, number: int, chance: random.Random) -> list[str]:
    """What is wrong with one submission, written in two ways, beside one that differs in a last digit."""
    members = _members(number, chance)
    amount = Decimal(members["f_decimal"])
    other_way = {name: members[name] for name in reversed(members)}
    other_way["f_decimal"] = f'"{members["f_decimal"]}"'
    other = {**members, "f_decimal": members["f_decimal"][:-1] + ("1" if members["f_decimal"][-1] != "1" else "2")}
    one, same, different = (command_for_payload(pipeline, _written(each)) for each in (members, other_way, other))
    read = project.samples.Submitted.model_validate_json(one.input)
    faults = []
    if read.f_decimal != amount or read.f_list != [amount, amount, Decimal(number)] or read.f_map["a"] != amount:
        faults.append(f"{amount} was taken for {read.f_decimal}")
    if one.execution_id != same.execution_id:
        faults.append(f"{amount} as a number and as text are two submissions")
    if one.execution_id == different.execution_id:
        faults.append(f"{amount} and {other['f_decimal']} are one submission")
    return faults
