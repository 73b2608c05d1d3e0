"""From pipeline.yaml to a `Pipeline`: read, check everything, bind the author's types and functions.

Order: text -> `document` (YAML, `${ENV}`, `--set`) -> `fields` (typed reading of a map) -> `steps`, `transports`, `ends`
with `binding` (what names stand for; `modules` imports them) -> `flow` (types between steps) -> `Pipeline`.
Nothing stops at the first problem; a value that depends on a faulty one is left alone, so that one mistake gives one message.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from schemas.errors import PipelineError, Problem
from topologies.pipeline.model import BROKER_DEFAULT, Pipeline, Retention, TokenKeys
from topologies.pipeline.release import release_id
from topologies.pipeline.steps import AwaitStep, connected
from topologies.reading.advice import TOKENS_ADVICE, TOP_HINTS
from topologies.reading.binding import Binding
from topologies.reading.document import SET_FILE, Node, Problems, apply_overrides, note_faults, read_document
from topologies.reading.ends import read_output, read_source
from topologies.reading.fields import Fields
from topologies.reading.flow import check_flow
from topologies.reading.modules import AuthorModules, refused_modules
from topologies.reading.steps import ReadStep, read_steps

PARTITIONS_DEFAULT = 12
PARTITIONS_MAX = 10_000
REPLICATION_MAX = 9
RETENTION_FACTS_DEFAULT_MS = 30 * 86_400_000
RETENTION_EXECUTIONS_DEFAULT_MS = 7 * 86_400_000
RETENTION_KEYS_DEFAULT_MS = 400 * 86_400_000

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def load_pipeline(
    path: str | Path,
    *,
    environ: Mapping[str, str],
    app: str | None = None,
    overrides: Sequence[str] = (),
    app_dir: str | Path | None = None,
) -> Pipeline:
    """Load, check and bind a pipeline.

    Args:
        path: The file; problems name it as given.
        environ: What `${NAME}` means.
        app: `--app`: replaces `app`; the pipeline's name stays.
        overrides: `--set`: `PATH=VALUE`, applied in order.
        app_dir: `--app-dir`: where modules are imported from; default: the file's folder.

    Raises:
        PipelineError: With every problem found, in file order.
    """
    problems = Problems()
    loader = _Loader(str(path), app=app, app_dir=app_dir, problems=problems)
    root = loader.read(environ=environ, overrides=overrides)
    pipeline = loader.load(root) if root is not None else None
    if problems.found or pipeline is None:
        raise PipelineError(in_file_order(problems.found))
    return pipeline


def in_file_order(found: Sequence[Problem]) -> list[Problem]:
    """Each problem once: those of the file by line, then those of overrides."""
    return sorted(dict.fromkeys(found), key=lambda problem: (problem.file == SET_FILE, problem.line))


def format_problems(problems: Sequence[Problem]) -> str:
    """One line a problem: `path:line: where: message; advice`."""
    return "\n".join(_formatted(problem) for problem in problems)


def _formatted(problem: Problem) -> str:
    place = f"{problem.file}:{problem.line}" if problem.line else problem.file
    where = f"{problem.where}: " if problem.where else ""
    return f"{place}: {where}{problem.message}; {problem.advice}"


class _Loader:
    """One run of `load_pipeline`."""

    def __init__(self, file: str, *, app: str | None, app_dir: str | Path | None, problems: Problems) -> None:
        self._file = file
        self._path = Path(os.path.abspath(file))  # noqa: PTH100 - symlinks stay: a mount may move them under a stable path
        self._app_dir = Path(os.path.abspath(app_dir)) if app_dir is not None else self._path.parent  # noqa: PTH100
        self._app_override = app
        self._app = ""
        self._problems = problems
        self._modules: AuthorModules | None = None

    def read(self, *, environ: Mapping[str, str], overrides: Sequence[str]) -> Node | None:
        """The tree with overrides applied; None when the file cannot be read at all."""
        try:
            text = self._path.read_bytes()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            self._problems.found.append(Problem(self._file, 0, "", f"cannot be read: {reason}", "name a pipeline.yaml"))
            return None
        root = read_document(text, file=self._file, environ=environ, problems=self._problems)
        if root is not None:
            apply_overrides(root, overrides, environ=environ, problems=self._problems)
            note_faults(root, self._problems)
        return root

    def load(self, root: Node) -> Pipeline | None:
        """The pipeline; None when something it needs is faulty."""
        fields = Fields(root, "", self._problems)
        self._refuse_modules(fields)
        name = self._names(fields)
        if self._modules is None:
            return self._body(fields, name)
        with self._modules:
            return self._body(fields, name)

    def _refuse_modules(self, fields: Fields) -> None:
        if not self._app_dir.is_dir():
            self._note_dir(fields, f"the app dir {self._app_dir} is no folder", "give a folder as --app-dir")
            return
        refused = refused_modules(self._app_dir)
        for module in refused:
            message = f"the top-level module {module.name!r} of the project has the name of one of kawait's own"
            self._note_dir(fields, message, "rename it, or move it into a package of your own")
        if not refused:
            self._modules = AuthorModules(self._app_dir.resolve())

    def _note_dir(self, fields: Fields, message: str, advice: str) -> None:
        self._problems.add(fields.node, "app-dir", message, advice, line=0)

    def _names(self, fields: Fields) -> str:
        required = "" if self._app_override else "write app: my-app, the prefix of topics and groups"
        written = fields.text("app", required=required) or self._app_override or ""
        name = fields.text("name", default=written) or written
        app = self._app_override or written
        self._app = app if _NAME.fullmatch(app) else ""  # a faulty one is reported here, not again in every topic
        for key, value in (("app", app), ("name", name)):
            if value and not _NAME.fullmatch(value):
                fields.note(
                    key, f"{value!r} is no name", "use letters, digits, dots, dashes and underscores, at most 200"
                )
        return name

    def _body(self, fields: Fields, name: str) -> Pipeline | None:
        binding = Binding(app=self._app, folder=self._path.parent, modules=self._modules, problems=self._problems)
        reads = read_steps(fields, binding)
        output_type = check_flow([read.types for read in reads], self._problems)
        input_type = reads[0].types.input if reads else None
        source = read_source(fields, input_type, binding)
        output = read_output(fields, output_type, source, binding)
        partitions, replication = self._kafka(fields, reads)
        tokens = self._tokens(fields, reads)
        retention = self._retention(fields)
        registry = self._registry(fields)
        fields.finish(TOP_HINTS)
        steps = connected([read.step for read in reads if read.step is not None])
        if self._problems.found or input_type is None or output_type is None or len(steps) < len(reads):
            return None
        pipeline = Pipeline(
            name=name,
            app=self._app,
            steps=steps,
            input_type=input_type,
            output_type=output_type,
            source=source,
            output=output,
            partitions=partitions,
            replication_factor=replication,
            tokens=tokens,
            retention=retention,
            registry_url=registry,
            path=self._path,
            app_dir=self._app_dir,
        )
        return replace(pipeline, release=release_id(pipeline))

    @staticmethod
    def _kafka(fields: Fields, reads: Sequence[ReadStep]) -> tuple[int, int]:
        below = fields.below("kafka")
        partitions, replication = PARTITIONS_DEFAULT, BROKER_DEFAULT
        if below is not None:
            partitions = below.integer("partitions", default=partitions, minimum=1, maximum=PARTITIONS_MAX)
            replication = below.integer("replicationFactor", default=replication, minimum=1, maximum=REPLICATION_MAX)
            below.finish()
        for read in reads:
            budget = read.step.budget if isinstance(read.step, AwaitStep) else None
            if budget is not None and budget.unresolved is not None and budget.unresolved < partitions:
                message = (
                    f"a budget of {budget.unresolved} cannot be shared by {partitions} partitions (kafka.partitions)"
                )
                read.fields.note("budget", message, f"write unresolved: {partitions} or more")
        return partitions, replication

    def _tokens(self, fields: Fields, reads: Sequence[ReadStep]) -> TokenKeys | None:
        below = fields.below("tokens")
        if below is None:
            if not fields.has("tokens"):
                for read in reads:
                    self._refuse_without_tokens(read)
            return None
        active = below.text("active", required="name the key that signs, for example active: k1")
        keys_map = below.below("keys", required=TOKENS_ADVICE)
        below.finish()
        keys: dict[str, bytes] = {}
        for key_id, node in keys_map.entries() if keys_map else ():
            secret = self._secret(keys_map, key_id, node) if keys_map else None
            if secret is not None:
                keys[key_id] = secret
        if active is not None and keys_map is not None and not keys_map.has(active):
            known = ", ".join(keys_map.node.value) or "none"
            below.note("active", f"there is no key {active!r}", f"use one of: {known}")
        return TokenKeys(active=active, keys=keys) if active in keys else None

    @staticmethod
    def _secret(keys: Fields, key_id: str, node: Node) -> bytes | None:
        """One secret. Its value never gets into a message, not even when it has the wrong type."""
        if not _KEY_ID.fullmatch(key_id):
            keys.note_key(key_id, f"{key_id!r} is no key id", "use letters, digits, dashes and underscores, at most 64")
        if node.faults:
            return None
        value = node.text if node.text is not None else node.value
        if not isinstance(value, str) or not value.strip():
            keys.note(
                key_id,
                "the secret is empty or no text",
                f'write {key_id}: "${{KAWAIT_TOKEN_{key_id.upper()}}}" and set it',
            )
            return None
        return value.encode()

    def _refuse_without_tokens(self, read: ReadStep) -> None:
        inside = read.fields.node.value.get("await")
        correlation = inside.value.get("correlation") if inside is not None and isinstance(inside.value, dict) else None
        strategy = (
            correlation.value.get("strategy")
            if correlation is not None and isinstance(correlation.value, dict)
            else None
        )
        if strategy is not None and read.kind == "await" and strategy.value == "signedResumeToken":
            where = f"{read.fields.where}.await.correlation.strategy"
            self._problems.add(strategy, where, "signedResumeToken needs a secret, and there is none", TOKENS_ADVICE)

    @staticmethod
    def _retention(fields: Fields) -> Retention:
        below = fields.below("retention")
        facts_ms = below.duration("facts") if below else None
        executions_ms = (below.duration("executions") if below else None) or RETENTION_EXECUTIONS_DEFAULT_MS
        keys_ms = below.duration("keys") if below else None
        if below is not None:
            if keys_ms is not None and keys_ms < executions_ms:
                what = "what ran would be forgotten before its execution is: an object that still lies there would run again"
                below.note("keys", what, "write at least what retention.executions says")
            below.finish()
        return Retention(
            facts_ms=facts_ms or RETENTION_FACTS_DEFAULT_MS,
            executions_ms=executions_ms,
            keys_ms=keys_ms or max(RETENTION_KEYS_DEFAULT_MS, executions_ms),
        )

    @staticmethod
    def _registry(fields: Fields) -> str | None:
        below = fields.below("schemas")
        if below is None:
            return None
        url = below.text("registry", required="write registry: http://...")
        if url is not None and not url.startswith(("http://", "https://")):
            below.note("registry", "the registry's address is no URL", "start it with http:// or https://")
        below.finish()
        return url
