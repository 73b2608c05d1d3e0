"""What the names in pipeline.yaml stand for: types, functions, projectors, topics, folders, key templates.

Each method reads one key of a map, and gives what it names, or notes a problem and gives None.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.topics import TOPICS
from topologies.pipeline.ends import template_fields
from topologies.pipeline.key_fields import key_field_problem
from topologies.pipeline.payloads import PayloadType, PayloadTypeError
from topologies.pipeline.projection import Projection
from topologies.pipeline.steps import Cardinality
from topologies.reading.advice import NOT_YET
from topologies.reading.document import Node, Problems
from topologies.reading.fields import Fields
from topologies.reading.modules import (
    AuthorModules,
    UnresolvedReference,
    is_coroutine_function,
    is_generator_function,
    takes_positional,
)

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OWN_TOPICS = (*(topic.suffix for topic in TOPICS), "correlations")


class Binding:
    """The meaning of names for one pipeline."""

    def __init__(self, *, app: str, folder: Path, modules: AuthorModules | None, problems: Problems) -> None:
        """Bind.

        Args:
            app: What `{app}` means; empty when it is faulty.
            folder: The pipeline's folder, absolute: where relative locations start.
            modules: None when nothing may be imported; references are then left alone.
            problems: Where problems are noted.
        """
        self._app = app
        self._folder = folder
        self._modules = modules
        self._problems = problems
        self._types: dict[str, PayloadType] = {}
        self._failed_modules: set[str] = set()

    def payload(self, fields: Fields, key: str, *, required: str) -> PayloadType | None:
        """The payload type under a key. `required` is the advice when the key is missing."""
        reference = fields.text(key, required=required)
        node = fields.get(key)
        return None if reference is None or node is None else self.payload_named(reference, node, fields.path(key))

    def payload_named(self, reference: str, node: Node, where: str) -> PayloadType | None:
        """The payload type that a reference at `node` names; compiled once for a pipeline."""
        known = self._types.get(reference)
        if known is not None:
            return known
        found = self._resolve_at(reference, node, where)
        if found is None:
            return None
        try:
            self._types[reference] = PayloadType(name=reference, python_type=found)
        except PayloadTypeError as error:
            self._problems.add(node, where, str(error), error.advice)
            return None
        return self._types[reference]

    def _resolve(self, reference: str | None, fields: Fields, key: str) -> Any:
        node = fields.get(key)
        return None if reference is None or node is None else self._resolve_at(reference, node, fields.path(key))

    def _resolve_at(self, reference: str, node: Node, where: str) -> Any:
        """What a reference names; None is a problem. A module that fails to import is reported once."""
        module = reference.partition(":")[0]
        if self._modules is None or module in self._failed_modules:
            return None
        try:
            found = self._modules.resolve(reference)
        except UnresolvedReference as error:
            if error.is_import:
                self._failed_modules.add(module)
            self._problems.add(node, where, str(error), error.advice)
            return None
        if found is None:
            self._problems.add(node, where, f"{reference} is None", "name a type or a function")
        return found

    def accepts(self, fields: Fields) -> PayloadType | None:
        """The arms that a branch takes; None when there is no `accepts`, or it is faulty."""
        texts = fields.texts("accepts")
        if fields.has("accepts") and not texts:
            fields.note(
                "accepts", "accepts names no type", "name the arms of the union that the step takes, or remove it"
            )
        members = [self.payload_named(text, node, fields.path("accepts")) for text, node in texts]
        found = [member for member in members if member is not None]
        if not found or len(found) < len(members):
            return None
        try:
            return PayloadType.union(found)
        except PayloadTypeError as error:
            fields.note("accepts", str(error), error.advice)
            return None

    def function(self, fields: Fields, cardinality: Cardinality | None) -> Callable[..., Any] | None:
        """The function of a run step."""
        reference = fields.text("run", required="write run: module:function, or kind: await")
        found = self._resolve(reference, fields, "run")
        if found is None:
            return None
        if not callable(found):
            fields.note("run", f"{reference} is no function", "name a function of one argument")
        elif not takes_positional(found, 1):
            fields.note(
                "run", f"{reference} cannot be called with one argument", "give it exactly one required parameter"
            )
        elif cardinality and is_generator_function(found) and not cardinality.gives_many:
            fields.note(
                "run",
                f"{reference} yields, but the step is {cardinality}",
                "return the one output, or write ONE_TO_MANY",
            )
        else:
            function: Callable[..., Any] = found
            return function
        return None

    def projection(self, inside: Fields) -> Projection | None:
        """`await.completion`; None when absent or faulty."""
        below = inside.below("completion")
        if below is None:
            return None
        advice = "write completion: {type: module:Type, projector: module:Projector}"
        answer = self.payload(below, "type", required=advice)
        reference = below.text("projector", required=advice)
        below.finish()
        project = self._bound_projector(self._resolve(reference, below, "projector"), reference, below)
        if answer is None or project is None or reference is None:
            return None
        return Projection(type=answer, project=project, name=reference)

    @staticmethod
    def _bound_projector(found: Any, reference: str | None, below: Fields) -> Callable[..., Any] | None:
        if found is None:
            return None
        advice = "write a class with project(self, request, completion, metadata) and no constructor arguments"
        project = found
        if isinstance(found, type):
            try:
                project = getattr(found(), "project", None)
            except Exception as error:  # the author's constructor
                below.note("projector", f"{reference} cannot be constructed: {type(error).__name__}", advice)
                return None
        if not callable(project) or not takes_positional(project, 3):
            below.note("projector", f"{reference} does not project (request, completion, metadata)", advice)
        elif is_coroutine_function(project) or is_generator_function(project):
            below.note("projector", f"{reference} is async or yields; a projector is pure", "return the output")
        else:
            bound: Callable[..., Any] = project
            return bound
        return None

    def topic(self, fields: Fields, key: str) -> str | None:
        """A topic name with `{app}` filled in."""
        text = fields.text(key, required='name a topic, for example "{app}.payment.requests"')
        if text is None:
            return None
        topic = text.replace("{app}", self._app or "app")
        if "{" in topic or "}" in topic:
            fields.note(key, f"{text!r} has a placeholder other than {{app}}", "only {app} is filled in")
        elif not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            fields.note(
                key, f"{topic!r} is no topic name", "use letters, digits, dots, dashes and underscores, at most 249"
            )
        elif topic in {f"{self._app}.{own}" for own in _OWN_TOPICS}:
            fields.note(key, f"{topic} is one of the app's own topics", "name another one")
        else:
            return topic
        return None

    def location(self, below: Fields, key: str = "location") -> Path | None:
        """A folder, absolute."""
        text = below.text(key, required="write a folder; a relative one starts at the pipeline's folder")
        if text is None:
            return None
        return Path(os.path.abspath(self._folder / text))  # noqa: PTH100 - symlinks stay, as for the pipeline's path

    @staticmethod
    def template(below: Fields, key: str, payload: PayloadType | None) -> str | None:
        """A key template whose fields all exist in the payload."""
        text = below.text(key)
        if text is None:
            return None
        try:
            names = template_fields(text)
        except ValueError as error:
            below.note(key, str(error), 'write for example "{paymentId}"')
            return None
        for name in names:
            if payload is not None and not payload.has_field(name):
                known = ", ".join(payload.field_names())
                below.note(key, f"{payload.name} has no field {name!r}", f"use fields of it: {known}")
        return text

    @staticmethod
    def idempotency_key_fields(fields: Fields, request: PayloadType | None) -> tuple[str, ...]:
        """Names of fields that the payload has, each once."""
        read = fields.texts("idempotencyKeyFields")
        seen: set[str] = set()
        for text, node in read:
            where = fields.path("idempotencyKeyFields")
            if text in seen:
                fields.problems.add(node, where, f"{text} is named twice", "remove one")
            elif request is not None and not request.has_field(text):
                known = ", ".join(request.field_names())
                fields.problems.add(node, where, f"{request.name} has no field {text!r}", f"use fields of it: {known}")
            elif request is not None and (problem := key_field_problem(request, text)) is not None:
                fields.problems.add(node, where, *problem)
            seen.add(text)
        return tuple(text for text, _ in read)


def not_yet(feature: str, fields: Fields, key: str) -> None:
    """Note a feature of `NOT_YET`; nothing once its row is gone."""
    if feature in NOT_YET:
        message, advice = NOT_YET[feature]
        fields.note(key, message, advice)
