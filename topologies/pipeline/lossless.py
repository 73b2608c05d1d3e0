"""Whether the JSON of a type leads back to its values: proved when the pipeline loads, else each value is read back before it is trusted.

Theory of operation. What is stored is JSON; after a restart the value is what that JSON says. pydantic compiles a type to a core schema, a tree
of the few kinds that it knows. `prove` walks that tree once:

    proved      each kind on the way leads back by itself: nothing is looked at when a value is written
    read back   some kind may not (an author's validator or serializer, a time zone, an open model): `PayloadType.to_json` reads what it wrote
    refused     no JSON can lead back, or it would be another value tomorrow: the author is told what to write instead

A proof is about values that were validated. A constraint on a model that may be changed afterwards is therefore read back; on a frozen one not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import SchemaError, SchemaSerializer, SchemaValidator
from typing_extensions import TypeAliasType

Schema = Mapping[str, Any]
"""A core schema of pydantic, or a part of one."""


class Lossy(ValueError):
    """No JSON leads back to the values of a type; the message says why, `advice` what to write.

    Attributes:
        advice: What to write instead.
    """

    def __init__(self, message: str, advice: str) -> None:
        self.advice = advice
        super().__init__(message)


@dataclass(slots=True)
class Proof:
    """What was found out about a type.

    Attributes:
        reads_back: A value is read back when it was written.
        has_floats: It may hold a float, which may be no number.
        has_decimals: It may hold a decimal, whose digits a JSON number loses on its way through a float.
        has_ints: It may hold an integer; likewise, from 2^53.
        has_free: It may hold JSON of no declared type, or float or decimal: numbers become floats that were not declared as such.
        has_sets: It may hold a set, whose order differs from process to process.
        models: The models on the way.
    """

    reads_back: bool = False
    has_floats: bool = False
    has_decimals: bool = False
    has_ints: bool = False
    has_free: bool = False
    has_sets: bool = False
    models: list[type[BaseModel]] = field(default_factory=list)


def prove(schema: Schema) -> Proof:
    """Walk the core schema of a type.

    Raises:
        Lossy: No JSON leads back to its values.
    """
    walk = _Walk()
    walk.visit(schema)
    return walk.proof


_PLAIN = frozenset({"none", "bool", "uuid", "missing-sentinel"})
_INNER = frozenset({"default", "nullable", "custom-error"})
_CUSTOM = frozenset({"function-before", "function-after", "function-wrap"})
_DEAD = frozenset({"is-instance", "is-subclass", "callable", "generator", "arguments", "arguments-v3", "call"})
_CONSTRAINTS = frozenset(
    {"gt", "ge", "lt", "le", "multiple_of", "max_digits", "decimal_places", "min_length", "max_length", "pattern"}
    | {"now_op", "version", "tz_constraint"}
)
_AS_TEXT = frozenset(
    {"decimal", "date", "datetime", "time", "timedelta", "uuid", "bytes", "enum", "fraction", "complex", "url"}
)
"""Kinds that are a text in JSON and no text in Python."""

_NO_KEYS = frozenset({"none", "list", "tuple", "set", "frozenset", "dict", "model", "dataclass", "typed-dict"})
"""Kinds that pydantic writes as a key and does not read as one."""

_NOTHING_SAID: Schema = {"type": "any"}
_SECRETS = (SecretStr, SecretBytes, Secret)
_ONE_ADVICE = "declare one of the two, or give each a model of its own"
_ANY_ADVICE = "name the type of what it holds; pydantic.JsonValue is any JSON"


@dataclass(slots=True)
class _Walk:
    """One walk over a schema."""

    proof: Proof = field(default_factory=Proof)
    where: str = "the value"
    """The field that is looked at, as `Model.field`."""
    is_frozen: bool = False
    """The model that is looked at cannot be changed once it was validated."""
    config: Schema = field(default_factory=dict)
    known: dict[str, Schema] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def visit(self, schema: Schema) -> None:
        """Look at a schema and what is below it."""
        kind = schema["type"]
        if "serialization" in schema:
            self.proof.reads_back = True
        if not self.is_frozen and not _CONSTRAINTS.isdisjoint(schema):
            self.proof.reads_back = True
        if kind in _INNER:
            self.visit(schema["schema"])
        elif kind in _DEAD:
            self._refuse(
                "has a type that no JSON leads back to", "use a pydantic model, or one of the types that JSON can hold"
            )
        elif kind not in _PLAIN:
            look = getattr(self, f"_{kind.replace('-', '_')}", None)
            if look is None:
                look = self._custom if kind in _CUSTOM else self._unknown
            look(schema)

    def _refuse(self, message: str, advice: str) -> NoReturn:
        raise Lossy(f"{self.where} {message}", advice)

    # --- scalars -------------------------------------------------------------------------------------------------------------------------

    def _any(self, _schema: Schema) -> None:
        self._refuse("may be anything, and JSON does not say what it was", _ANY_ADVICE)

    def _str(self, schema: Schema) -> None:
        if schema.get("coerce_numbers_to_str", self.config.get("coerce_numbers_to_str")):
            self.proof.has_decimals = True  # a text that is made of a number keeps its digits likewise

    def _json(self, _schema: Schema) -> None:
        self._refuse(
            "is JSON inside a text, and numbers in it lose digits", "declare the type of what it holds, or str"
        )

    def _int(self, _schema: Schema) -> None:
        self.proof.has_ints = True

    def _float(self, _schema: Schema) -> None:
        self.proof.has_floats = True

    def _decimal(self, _schema: Schema) -> None:
        self.proof.has_decimals = True
        if not self.is_frozen:  # it may have become NaN
            self.proof.reads_back = True

    def _bytes(self, _schema: Schema) -> None:
        written = self.config.get("ser_json_bytes", "utf8")
        read = self.config.get("val_json_bytes", "utf8")
        if written != read:
            message = f"is written as {written} and read as {read}"
            self._refuse(message, f"set val_json_bytes={written!r} and ser_json_bytes={written!r} in model_config")
        self.proof.reads_back = self.proof.reads_back or written != "utf8"

    def _datetime(self, schema: Schema) -> None:
        self._no_future(schema)
        self.proof.reads_back = True  # an offset with seconds is cut

    def _date(self, schema: Schema) -> None:
        self._no_future(schema)

    def _time(self, _schema: Schema) -> None:
        self.proof.reads_back = True

    _timedelta = _time

    def _no_future(self, schema: Schema) -> None:
        if schema.get("now_op") == "future":
            self._refuse("must be in the future, and will not be when it is read again", "check it in a step")

    def _literal(self, schema: Schema) -> None:
        self._constants(schema, {type(value) for value in schema["expected"]})

    def _enum(self, schema: Schema) -> None:
        self._constants(schema, {type(member.value) for member in schema["members"] if isinstance(member, Enum)})

    def _constants(self, schema: Schema, kinds: set[type]) -> None:
        self.proof.reads_back |= kinds not in ({str}, {int}, {bool})
        self._try_constants(schema, [schema])

    # --- containers ----------------------------------------------------------------------------------------------------------------------

    def _within(self, *parts: Schema) -> None:
        """What a container holds may be put in after it was validated, in a frozen model too."""
        was_frozen, self.is_frozen = self.is_frozen, False
        for part in parts:
            self.visit(part)
        self.is_frozen = was_frozen

    def _list(self, schema: Schema) -> None:
        self._within(schema.get("items_schema", _NOTHING_SAID))
        self.proof.reads_back = self.proof.reads_back or not _CONSTRAINTS.isdisjoint(schema)

    def _set(self, schema: Schema) -> None:
        self.proof.has_sets = True
        self._list(schema)

    _frozenset = _set

    def _tuple(self, schema: Schema) -> None:
        for item in schema["items_schema"]:
            self.visit(item)

    def _dict(self, schema: Schema) -> None:
        self.proof.reads_back = True  # a key that is not UTF-8 is written as another one
        keys = self._bare(schema.get("keys_schema", _NOTHING_SAID))
        if keys["type"] in _NO_KEYS:
            self._refuse(f"has keys of type {keys['type']}, and the keys of JSON are texts", "use str keys")
        self._within(schema.get("keys_schema", _NOTHING_SAID), schema.get("values_schema", _NOTHING_SAID))

    def _definitions(self, schema: Schema) -> None:
        self.known.update({each["ref"]: each for each in schema["definitions"]})
        self.visit(schema["schema"])

    def _definition_ref(self, schema: Schema) -> None:
        ref = schema["schema_ref"]
        if ref not in self.seen:
            self.seen.add(ref)
            self.visit(self.known[ref])

    def _json_or_python(self, schema: Schema) -> None:
        self._refuse_secret(schema)
        self.proof.reads_back = True
        json = schema["json_schema"]
        if json["type"] == "any" and schema["python_schema"]["type"] == "tagged-union":  # pydantic.JsonValue
            self.proof.has_floats = self.proof.has_free = True
            return
        self.visit(json)

    def _lax_or_strict(self, schema: Schema) -> None:
        self.visit(schema["lax_schema"])

    def _chain(self, schema: Schema) -> None:
        self.proof.reads_back = True
        for step in schema["steps"]:
            if step["type"] not in _DEAD:
                self.visit(step)

    def _custom(self, schema: Schema) -> None:
        """An author's function: what it does to what it made before is not known."""
        self._refuse_secret(schema)
        self.proof.reads_back = True
        self.visit(schema["schema"])

    def _unknown(self, schema: Schema) -> None:
        """A kind of which nothing is proved: what it holds is looked at, and each value is read back."""
        self._refuse_secret(schema)
        proof = self.proof
        proof.reads_back = proof.has_floats = proof.has_decimals = proof.has_ints = True
        for name in ("schema", "items_schema", "keys_schema", "values_schema"):
            if isinstance(schema.get(name), Mapping):
                self.visit(schema[name])
        below = schema.get("fields", ())
        for each in below.values() if isinstance(below, Mapping) else below:
            if isinstance(each, Mapping) and isinstance(each.get("schema"), Mapping):
                self.visit(each["schema"])

    def _refuse_secret(self, schema: Schema) -> None:
        function = schema.get("serialization", {}).get("function")
        is_own = function is not None and not getattr(function, "__module__", "").startswith("pydantic")
        if not is_own and any(map(_is_secret, _named_in(schema))):
            self._refuse(
                "is a secret, and would be written as asterisks", "use str, and keep it out of payloads if you can"
            )

    # --- models --------------------------------------------------------------------------------------------------------------------------

    def _model(self, schema: Schema) -> None:
        ref = schema.get("ref")
        if ref is not None:
            self.seen.add(ref)
            self.known[ref] = schema
        model: type[BaseModel] = schema["cls"]
        self.proof.models.append(model)
        outer = (self.where, self.is_frozen, self.config)
        self.where, self.config = model.__name__, schema.get("config", {})
        self.is_frozen = bool(schema.get("frozen") or model.model_config.get("frozen"))
        is_open = self.config.get("extra_fields_behavior") == "allow"
        if is_open or schema.get("custom_init") or schema.get("post_init") not in (None, "init_private_attributes"):
            self.proof.reads_back = self.proof.has_floats = True
        self.proof.has_free |= is_open
        self.visit(schema["schema"])
        self.where, self.is_frozen, self.config = outer

    def _model_fields(self, schema: Schema) -> None:
        if schema.get("extras_schema"):
            self.proof.reads_back = True
            self.visit(schema["extras_schema"])
        for name, each in schema["fields"].items():
            self.where = f"{schema['model_name']}.{name}"
            self.visit(each["schema"])

    # --- unions --------------------------------------------------------------------------------------------------------------------------

    def _tagged_union(self, schema: Schema) -> None:
        if callable(schema["discriminator"]):
            self.proof.reads_back = True
        for each in schema["choices"].values():
            if isinstance(each, Mapping):
                self.visit(each)

    def _union(self, schema: Schema) -> None:
        arms = [each[0] if isinstance(each, tuple) else each for each in schema["choices"]]
        for arm in arms:
            self.visit(arm)
        bare = [self._bare(arm) for arm in arms]
        kinds = [arm["type"] for arm in bare]
        if "str" in kinds and (others := sorted({arm["type"] for arm in bare if _is_text(arm)})):
            self._refuse(
                f"is str or {others[0]}, and both are a text in JSON",
                _ONE_ADVICE,
            )
        self.proof.has_free |= {"float", "decimal"} <= set(kinds)
        self._try_constants(schema, bare)
        models = [arm["cls"] for arm in bare if arm["type"] == "model"]
        refuse_look_alikes(self.where, models)
        shapes = [_json_shape(arm) for arm in bare if arm["type"] != "model"]
        if len(models) > 1 and len(models) < len(bare) and "object" in shapes:
            self.proof.reads_back = True
        if schema.get("mode") == "left_to_right" or None in shapes or len(set(shapes)) < len(shapes):
            self.proof.reads_back = True

    def _try_constants(self, union: Schema, arms: Sequence[Schema]) -> None:
        """Refuse a union in which a member of an enum or literal would be read as another arm; each is tried."""
        members = [each for arm in arms for each in arm.get("members", arm.get("expected", ()))]
        if not members:
            return
        whole: Any = {"type": "definitions", "schema": union, "definitions": [*self.known.values()]}
        try:
            writer, reader = SchemaSerializer(whole), SchemaValidator(whole)
        except SchemaError:  # it names a type that is looked at right now
            self.proof.reads_back = True
            return
        for member in members:
            try:
                back = reader.validate_json(writer.to_json(member))
            except ValueError:
                self._refuse(f"may be {member!r}, which JSON does not lead back to", "use text or integers")
            if type(back) is not type(member) or back != member:
                self._refuse(f"may be {member!r}, which would be read back as {back!r}", _ONE_ADVICE)

    def _bare(self, schema: Schema) -> Schema:
        while True:
            if schema["type"] in _INNER or schema["type"] in _CUSTOM:
                schema = schema["schema"]
            elif schema["type"] == "definition-ref" and schema["schema_ref"] in self.known:
                schema = self.known[schema["schema_ref"]]
            else:
                return schema


def _is_text(schema: Schema) -> bool:
    """Whether a kind is a text in JSON, and no text in Python."""
    members = schema.get("members", ())
    return schema["type"] in _AS_TEXT and (not members or any(isinstance(each.value, str) for each in members))


def _json_shape(schema: Schema) -> str | None:
    """What the JSON of a kind begins with; None: it is not known."""
    kind = schema["type"]
    if kind in ("none", "bool", "int", "float"):
        return str(kind)
    if kind == "str" or kind in _AS_TEXT:
        return "text"
    if kind in ("list", "tuple", "set", "frozenset"):
        return "array"
    return "object" if kind == "dict" else None


def _named_in(schema: Schema) -> Iterable[Any]:
    """The classes and functions that a schema names, down to the next one that has a name."""
    for value in schema.values():
        if isinstance(value, Mapping):
            yield from _named_in(value)
        elif isinstance(value, (list, tuple)):
            for each in value:
                if isinstance(each, Mapping):
                    yield from _named_in(each)
        elif callable(value):
            yield value


def _is_secret(named: Any) -> bool:
    if isinstance(named, type):
        return issubclass(named, _SECRETS)
    return str(getattr(named, "__qualname__", "")).startswith("Secret.")


# --- arms that JSON tells apart ------------------------------------------------------------------------------------------------------


def refuse_look_alikes(name: str, models: Sequence[type[BaseModel]]) -> None:
    """Refuse a plain union in which the JSON of one arm would be read as another arm.

    Without a discriminator pydantic takes the arm that uses most fields, the first of equals. The JSON of `right` is read
    as `left` when `left` needs nothing that it lacks and knows all that it has, unless a Literal field differs.
    """
    for index, right in enumerate(models):
        for left in (*models[:index], *models[index + 1 :]):
            if _reads_as(right, left):
                raise Lossy(
                    f"{left.__name__} and {right.__name__} of {name} cannot be told apart in JSON",
                    'give each a field such as `kind: Literal["..."] = "..."` with its own value',
                )


def _reads_as(source: type[BaseModel], target: type[BaseModel]) -> bool:
    required = {field for field, info in target.model_fields.items() if info.is_required()}
    written = set(source.model_fields)
    if not required <= written or not written <= set(target.model_fields):
        return False
    both = ((_literals(source, name), _literals(target, name)) for name in written)
    return not any(mine and theirs and mine.isdisjoint(theirs) for mine, theirs in both)


def _literals(model: type[BaseModel], field: str) -> frozenset[Any]:
    annotation = unwrapped(model.model_fields[field].annotation)
    return frozenset(get_args(annotation)) if get_origin(annotation) is Literal else frozenset()


def unwrapped(python_type: Any) -> Any:
    """A type without the aliases and annotations around it."""
    while True:
        if isinstance(python_type, TypeAliasType):
            python_type = python_type.__value__
        elif get_origin(python_type) is Annotated:
            python_type = get_args(python_type)[0]
        else:
            return python_type
