"""Values to draw, as Python expressions: of each type some that JSON can say, and some of which that is doubtful."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

Draw = Callable[[random.Random], str]

_TEXTS = ("", " ", "naïve", "日本", "\u2028", 'a"b\\c', "line\nbreak", "1e999", "NaN", "null", "=1+1", "\x00", "💶")
_FLOATS = ("0.1", "1e308", "5e-324", "-0.0", "1/3", "123456789.123456789", "2.0**63", "1e16", "100.0")
_INTS = ("0", "-1", "2**53+1", "-2**63", "2**64", "10**30", "7")


def _text(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return repr(chance.choice(_TEXTS))
    return repr("".join(chance.choices(string.ascii_letters + "äß€,;", k=chance.randrange(12))))


def _float(chance: random.Random) -> str:
    return chance.choice(_FLOATS) if chance.random() < 0.5 else repr(chance.uniform(-1e6, 1e6))


def _int(chance: random.Random) -> str:
    return chance.choice(_INTS) if chance.random() < 0.5 else str(chance.randrange(-(10**9), 10**9))


def _decimal(chance: random.Random) -> str:
    digits = str(chance.randrange(1, 10 ** chance.randrange(1, 30)))
    places = chance.randrange(0, 12)
    forms = (
        f"{digits}",
        f"-{digits}",
        f"{digits}.{'0' * places}",
        f"0.{digits}",
        "1E+3",
        "-0.00",
        "12345678901234567.89",
    )
    return f"Decimal({chance.choice(forms)!r})"


def _date(chance: random.Random) -> str:
    return f"dt.date({chance.randrange(1, 9999)}, {chance.randrange(1, 13)}, {chance.randrange(1, 29)})"


def _datetime(chance: random.Random) -> str:
    zone = chance.choice(("", ", tzinfo=dt.UTC", ", tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))"))
    clock = f"{chance.randrange(24)}, {chance.randrange(60)}, {chance.randrange(60)}, {chance.randrange(10**6)}"
    return f"dt.datetime({chance.randrange(1900, 2200)}, {chance.randrange(1, 13)}, {chance.randrange(1, 29)}, {clock}{zone})"


def _inner(chance: random.Random) -> str:
    return f"Inner(amount={_decimal(chance)}, weights={_several(_float)(chance)}, on={_date(chance)})"


def _several(draw: Draw, opening: str = "[", closing: str = "]") -> Draw:
    return lambda chance: opening + ", ".join(draw(chance) for _ in range(chance.randrange(1, 6))) + closing


def _pairs(key: Draw, value: Draw) -> Draw:
    pair: Draw = lambda chance: f"{key(chance)}: {value(chance)}"  # noqa: E731 - a draw like the others
    return _several(pair, "{", "}")


def _one_of(*texts: str) -> Draw:
    return lambda chance: chance.choice(texts)


def _either(*draws: Draw) -> Draw:
    return lambda chance: chance.choice(draws)(chance)


DRAWS: dict[str, Draw] = {
    "int": _int,
    "float": _float,
    "bool": _one_of("True", "False"),
    "str": _text,
    "decimal": _decimal,
    "money": _one_of("Decimal('0.10')", "Decimal('1234567.89')", "Decimal('-5')", "Decimal('100')"),
    "date": _date,
    "datetime": _datetime,
    "time": lambda chance: (
        f"dt.time({chance.randrange(24)}, {chance.randrange(60)}, {chance.randrange(60)}, {chance.randrange(10**6)})"
    ),
    "timedelta": lambda chance: (
        f"dt.timedelta(days={chance.randrange(-999, 999)}, microseconds={chance.randrange(10**9)})"
    ),
    "uuid": lambda chance: f"uuid.UUID(int={chance.getrandbits(128)})",
    "bytes": lambda chance: repr("".join(chance.choices("abcäß€ \n", k=chance.randrange(12))).encode()),
    "enum": _one_of("Colour.RED", "Colour.BLUE"),
    "int_enum": _one_of("Level.LOW", "Level.HIGH"),
    "literal": _one_of("'a'", "1"),
    "list_int": _several(_int),
    "list_float": _several(_float),
    "tuple": lambda chance: f"({_int(chance)}, {_text(chance)}, {_decimal(chance)})",
    "set_str": _several(_text, "{", "}"),
    "frozenset_int": _several(_int, "frozenset({", "})"),
    "dict_decimal": _pairs(_text, _decimal),
    "dict_int": _pairs(_int, _text),
    "dict_date": _pairs(_date, _int),
    "maybe_float": _either(_float, _one_of("None")),
    "maybe_str": _either(_text, _one_of("None")),
    "int_or_str": _either(_int, _text, _one_of("'5'", "'1.0'")),
    "float_or_str": _either(_float, _text),
    "decimal_or_int": _decimal,
    "date_or_datetime": _datetime,
    "inner": _inner,
    "animal": _either(lambda chance: f"Cat(lives={_int(chance)})", lambda chance: f"Dog(weight={_float(chance)})"),
    "inners": _several(_inner),
    "any": _either(_int, _text, _several(_int), _one_of("None", "True", "{'a': [1, 'b']}")),
    "ip": lambda chance: f"ipaddress.IPv4Address({chance.getrandbits(32)})",
    "url": _one_of("'https://example.org/a?b=c#d'", "'http://localhost:9/x'"),
    "path": _one_of("'/a/b c/d'", "'x'"),
    "byte_size": _one_of("'1KiB'", "0", "'3MB'"),
    "corner": lambda chance: f"{{'x': {_float(chance)}, 'y': {_float(chance)}}}",
    "point": lambda chance: f"Point(x={_float(chance)}, label={_text(chance)})",
    "nested": lambda chance: (
        f"{{{_text(chance)}: [({_decimal(chance)}, {_float(chance)}), ({_decimal(chance)}, None)]}}"
    ),
}
"""Type -> what JSON can say of it. A type that is missing here has nothing of that kind."""

_NO_NUMBER = ("float('nan')", "float('inf')", "float('-inf')")

DOUBTFUL: dict[str, tuple[str, ...]] = {
    "float": _NO_NUMBER,
    "maybe_float": _NO_NUMBER,
    "list_float": ("[1.0, float('nan')]",),
    "float_or_str": _NO_NUMBER,
    "inner": ("Inner(amount=Decimal(1), weights=[float('inf')], on=dt.date(2026, 1, 1))",),
    "inners": ("[Inner(amount=Decimal(1), weights=[float('nan')], on=dt.date(2026, 1, 1))]",),
    "animal": ("Dog(weight=float('nan'))",),
    "corner": ("{'x': float('nan'), 'y': 1.0}",),
    "point": ("Point(x=float('inf'), label='p')",),
    "nested": ("{'a': [(Decimal(1), float('nan'))]}",),
    "bytes": (r"b'\xff\x00'", r"bytes(range(256))"),
    "any": (
        "float('nan')",
        "Decimal('1.10')",
        "{1, 2}",
        "dt.date(2026, 1, 1)",
        r"b'x'",
        "(1, 2)",
        "Cat(lives=9)",
        "{1: 'a'}",
    ),
    "decimal_or_int": ("5", "Decimal('5')"),
    "date_or_datetime": ("dt.date(2026, 1, 1)", "dt.datetime(2026, 1, 1)", "dt.datetime(2026, 1, 1, tzinfo=dt.UTC)"),
    "int_or_str": ("True",),
    "literal": ("True",),
    "secret": ("'hunter2'",),
    "excluded": ("7",),
    "rounded": ("Decimal('12345678901234567.89')", "Decimal('0.5')"),
    "json": ("'[1, 2]'",),
    "time": ("dt.time(1, 2, 3, tzinfo=dt.UTC)",),
    "timedelta": ("dt.timedelta.max",),
    "dict_date": ("{dt.date(1, 1, 1): 1}",),
    "str": (r"'\ud800'",),
    "datetime": ("dt.datetime(2026, 10, 25, 2, 30, fold=1)",),
}
"""Type -> values that are sent as they are meant, or refused by the name of their field; nothing else."""

NO_ANSWER: dict[str, tuple[str, ...]] = {
    "float": ("1e999", "-1e999", '"nan"', '"inf"', "NaN", "null", "[]"),
    "maybe_float": ("1e999", '"-inf"', '"nan"'),
    "list_float": ("[1e999]", '[1, "nan"]'),
    "decimal": ('"NaN"', '"Infinity"', "[]"),
    "int": ("1e999", "1.5", '"x"'),
    "corner": ('{"x": 1e999, "y": 0}',),
    "tuple": ("[1]",),
    "dict_decimal": ('{"a": "sNaN"}',),
    "bool": ('"perhaps"',),
}
"""Type -> JSON of answers that must be refused, and leave their interactions open."""
