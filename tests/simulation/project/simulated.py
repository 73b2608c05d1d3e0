"""The author's half of the simulated pipelines: small payloads whose functions stumble on command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Raw
from pydantic import BaseModel, ConfigDict, Field

ALWAYS = 99
"""A function that stumbles so often never succeeds."""

REFUSED = 666
"""The verdict that the projector will not take."""


class Order(BaseModel):
    """What is submitted. `items`: how often the suffix of each item stumbles; `trouble`: how often the source does, at `trouble_at`."""

    name: str
    items: list[int]
    trouble: int = 0
    trouble_at: int = 0


class Inner(BaseModel):
    share: Decimal
    notes: list[int | str]


class Extra(BaseModel):
    """Fields of many kinds: what is sent must be what is meant, however it was written."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    amount: Decimal
    ratio: float
    blob: bytes
    tags: set[str]
    size: int
    day: date
    at: datetime
    inner: dict[str, Inner]


class Lines(BaseModel):
    """A file whose lines are items: name, index, and how often the suffix stumbles."""

    path: Path


class Ask(BaseModel):
    name: str
    index: int
    fails: int = 0
    count: int = 0
    extra: Extra | None = None


class Yes(BaseModel):
    kind: Literal["yes"] = "yes"
    name: str
    index: int
    fails: int = 0
    count: int = 0
    extra: Extra | None = None
    value: int


class No(BaseModel):
    kind: Literal["no"] = "no"
    name: str
    index: int
    fails: int = 0
    count: int = 0
    extra: Extra | None = None
    value: int


Reply = Annotated[Yes | No, Field(discriminator="kind")]


class Verdict(BaseModel):
    """What the outside party is trusted with where a projector makes the reply of it."""

    good: bool
    value: int


class Line(BaseModel):
    name: str
    index: int
    text: str


class Total(BaseModel):
    name: str
    count: int
    text: str


class Stumbled(Exception):
    """The function failed this time."""


calls: Counter[tuple[str, str, int]] = Counter()


between_lines: list[Callable[[Path], None]] = [lambda _path: None]
"""Called before each line that is read of a file: it may change meanwhile."""


def reset() -> None:
    """Forget how often each function was called."""
    calls.clear()
    between_lines[0] = lambda _path: None


def _stumble(where: str, name: str, index: int, fails: int) -> None:
    calls[where, name, index] += 1
    if calls[where, name, index] <= fails:
        raise Stumbled(f"{where} {name} {index}")


# --- what the outside party answers ------------------------------------------------------------------------------------


def order(name: str, items: list[int], trouble: int, trouble_at: int) -> dict[str, Any]:
    """A submission."""
    return Order(name=name, items=items, trouble=trouble, trouble_at=trouble_at).model_dump()


def answer(request: dict[str, Any], *, projected: bool, variant: int) -> dict[str, Any]:
    """The answer to a request; another `variant` is another answer."""
    index = request.get("index", 0)
    value = 100 * index + variant
    good = (index + variant) % 3 != 0
    if projected:
        return {"good": good, "value": value}
    common: dict[str, Any] = {name: request[name] for name in ("name", "fails", "count") if name in request}
    if request.get("extra") is not None:
        common["extra"] = rewritten(request["extra"], index + variant)
    return {"kind": "yes" if good else "no", "index": index, "value": value, **common}


# --- values ------------------------------------------------------------------------------------------------------------


def extra_of(index: int) -> Extra | None:
    """What an item carries besides, from its index; some carry nothing."""
    if index % 3 == 2:
        return None
    return Extra(
        amount=(Decimal("12345678901234567.89"), Decimal("250.00"), Decimal("-0.1"), Decimal("1E+3"))[index % 4],
        ratio=(0.1, 1e22, 5e-324, -0.0, 1 / 3)[index % 5],
        blob=bytes([0, 255, index % 256]) * (index % 3),
        tags={f"tag {number}" for number in range(index % 4)} | {"é", "z"},
        size=(2**70 + index, -1)[index % 2],
        day=date(2024, 2, 29),
        at=datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC),
        inner={"a": Inner(share=Decimal("0.30"), notes=[5, "5", index])},
    )


def rewritten(extra: dict[str, Any], how: int) -> dict[str, Any]:
    """The same as somebody else writes it: members in another order, decimals as numbers or with more digits."""
    changed = dict(reversed(extra.items())) if how % 2 else dict(extra)
    amount = Decimal(extra["amount"])
    if how % 3 == 0:
        changed["amount"] = Raw(f"{amount:f}".encode())
    elif how % 3 == 1:
        changed["amount"] = f"{amount:f}"
    changed["tags"] = list(reversed(extra["tags"]))
    return changed


def endless(extra: dict[str, Any]) -> dict[str, Any]:
    """With a number that is none."""
    return {**extra, "ratio": Raw(b"1e999")}


def told(extra: Extra | None) -> str:
    """What is meant, in words that do not depend on how it was written."""
    if extra is None:
        return ""
    inner = {name: (part.share.normalize(), part.notes) for name, part in extra.inner.items()}
    return f" {extra.amount.normalize()} {extra.ratio!r} {extra.blob.hex()} {sorted(extra.tags)} {extra.size} {extra.at} {inner}"


# --- steps -------------------------------------------------------------------------------------------------------------


def prepare(value: Order) -> Ask:
    _stumble("prepare", value.name, 0, value.trouble)
    return Ask(name=value.name, index=0, fails=value.items[0] if value.items else 0, count=len(value.items))


def split(value: Order) -> Iterator[Ask]:
    for index, fails in enumerate(value.items):
        if index == value.trouble_at:
            _stumble("split", value.name, 0, value.trouble)
        yield Ask(name=value.name, index=index, fails=fails, extra=extra_of(index))


def read_lines(value: Lines) -> Iterator[Ask]:
    """A line at a time from where the last one ended, so that it sees whatever lies there by then."""
    position = 0
    while True:
        between_lines[0](value.path)
        with value.path.open("rb") as lines:
            lines.seek(position)
            line = lines.readline().decode()
            position = lines.tell()
        if not line:
            return
        name, index, fails = line.rstrip("\n").split(",")
        yield Ask(name=name, index=int(index), fails=int(fails), extra=extra_of(int(index)))


def touch(value: Ask) -> Ask:
    return value.model_copy(update={"count": value.index + 1})


def reask(value: Reply) -> Ask:
    return Ask(name=value.name, index=value.index + 1, fails=value.fails, count=value.count)


def spread(value: Reply) -> Iterator[Ask]:
    for index in range(value.count):
        yield Ask(name=value.name, index=index)


def yes(value: Yes) -> Line:
    _stumble("suffix", value.name, value.index, value.fails)
    return Line(name=value.name, index=value.index, text=f"yes {value.value}{told(value.extra)}")


def no(value: No) -> Line:
    _stumble("suffix", value.name, value.index, value.fails)
    return Line(name=value.name, index=value.index, text=f"no {value.value}{told(value.extra)}")


async def yes_async(value: Yes) -> Line:
    return yes(value)


def finish(value: Line) -> Line:
    return value.model_copy(update={"text": value.text + " done"})


def double(value: Line) -> Iterator[Line]:
    for part in range((value.index + 1) % 3):
        yield value.model_copy(update={"text": f"{value.text} part {part}"})


def total(values: list[Line]) -> Total:
    name = values[0].name if values else ""
    return Total(name=name, count=len(values), text="; ".join(f"{line.index} {line.text}" for line in values))


def backwards(values: list[Line]) -> list[Line]:
    return list(reversed(values))


def weigh(value: Total) -> Ask:
    return Ask(name=value.name, index=value.count + 50)


def again(value: Total) -> Iterator[Ask]:
    for index in range(value.count):
        yield Ask(name=value.name, index=index)


class Judge:
    """Makes the reply of a verdict and the request that was asked."""

    def project(self, request: Ask, completion: Verdict, metadata: Any) -> Reply:
        if completion.value == REFUSED:
            raise ValueError("no such verdict")
        kind = Yes if completion.good else No
        return kind(
            name=request.name, index=request.index, fails=request.fails, count=request.count, value=completion.value
        )
