"""What a good pipeline.yaml becomes."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import limits
from schemas.errors import PipelineError, Problem
from tests.pipeline.conftest import ENVIRON, ORDERS, PAYMENTS, SECRET, Load, Problems
from topologies.pipeline.ends import (
    ObjectOutput,
    ObjectSource,
    TopicOutput,
    TopicSource,
    fill_template,
    template_fields,
)
from topologies.pipeline.model import BROKER_DEFAULT, Pipeline
from topologies.pipeline.projection import Completion
from topologies.pipeline.steps import Cardinality, Retry, RunStep, Skip, Value, streams_into
from topologies.pipeline.transports import KafkaTransport
from topologies.reading.document import kebab_case
from topologies.reading.loading import load_pipeline

ROOT = Path(__file__).parents[2]


def orders(*overrides: str) -> Pipeline:
    return load_pipeline(ORDERS, environ={}, overrides=overrides)


def run_step(pipeline: Pipeline, index: int) -> RunStep:
    step = pipeline.step(index)
    assert isinstance(step, RunStep)
    return step


def test_the_example_of_surface() -> None:
    pipeline = load_pipeline(PAYMENTS, environ=ENVIRON)
    assert (pipeline.name, pipeline.app, pipeline.partitions) == ("csv-payments", "csv-payments", 12)
    assert pipeline.replication_factor == BROKER_DEFAULT
    assert pipeline.path == PAYMENTS
    assert pipeline.app_dir == PAYMENTS.parent
    assert pipeline.source == ObjectSource(
        provider="filesystem", location=PAYMENTS.parent / "in", include=("*.csv",), poll_ms=10_000
    )
    assert pipeline.output == ObjectOutput(
        provider="filesystem", location=PAYMENTS.parent / "out", key="{groupKey}.out", format="csv", group_by=None
    )
    assert [step.step_id for step in pipeline.steps] == [
        "process-csv-payments-input",
        "await-payment-provider",
        "process-approved",
        "process-unapproved",
        "finalize-payment-output",
    ]
    assert [step.index for step in pipeline.steps] == [0, 1, 2, 3, 4]
    assert [step.line for step in pipeline.steps] == [5, 6, 21, 22, 23]
    assert pipeline.tokens is not None
    assert (pipeline.tokens.active, dict(pipeline.tokens.keys)) == ("k1", {"k1": SECRET.encode()})
    assert pipeline.input_type.name == "domain:PaymentsFile"
    assert pipeline.output_type.name == "domain:PaymentOutput"
    assert pipeline.external_topics == ("csv-payments.payment.requests", "csv-payments.payment.results")
    assert pipeline.response_topics == ("csv-payments.payment.results",)


def test_the_await_step_of_the_example() -> None:
    step = load_pipeline(PAYMENTS, environ=ENVIRON).await_step(1)
    assert step.timeout_ms == 300_000
    assert step.idempotency_key_fields == ("csvPaymentsInputFilePath", "csvId", "recipient", "amount", "currency")
    assert (step.owner, step.strategy, step.needs_token) == ("payments-operations", "signedResumeToken", True)
    assert (step.live, step.window, step.idle_ms) == (True, 1024, 30_000)
    assert (step.on_timeout, step.projection, step.budget, step.assignee) == (None, None, None, None)
    assert step.answer_type is step.output
    assert step.transport == KafkaTransport(
        request_topic="csv-payments.payment.requests",
        request_key="interactionId",
        response_topic="csv-payments.payment.results",
        request_format="json",
        response_format="json",
    )


def test_the_demo_loads() -> None:
    pipeline = load_pipeline(ROOT / "topologies/csv_payments/pipeline.yaml", environ=ENVIRON)
    assert pipeline.await_step(1).itemised
    assert pipeline.await_step(1).suffix_stop == 5


def test_shape_of_a_pipeline() -> None:
    pipeline = orders()
    assert pipeline.name == "orders"
    assert [pipeline.next_await(index) for index in range(8)] == [1, 1, 3, 3, 6, 6, 6, None]
    assert [pipeline.await_step(index).itemised for index in (1, 3, 6)] == [False, True, False]
    assert [pipeline.await_step(index).suffix_stop for index in (1, 3, 6)] == [5, 5, 7]
    assert [streams_into(pipeline.steps, index) for index in range(7)] == [False, False, False, True, True, True, False]
    assert [pipeline.item_type(index).name for index in (0, 1, 5, 7)] == ["domain:Order"] * 3 + ["domain:Decision"]
    assert [step.step_id for step in pipeline.await_steps] == ["ask-warehouse", "ask-shop", "ask-again"]
    assert pipeline.find_step("collect") is pipeline.step(5)
    assert pipeline.find_step("nowhere") is None
    with pytest.raises(AssertionError):
        pipeline.await_step(0)


def test_topic_ends_and_defaults() -> None:
    pipeline = orders()
    assert isinstance(pipeline.source, TopicSource)
    assert (pipeline.source.topic, pipeline.source.key, pipeline.source.type.name) == (
        "orders.in",
        "{order_id}",
        "domain:Order",
    )
    assert pipeline.output == TopicOutput(topic="orders.out", key="{order_id}")
    assert pipeline.external_topics[0] == "orders.in"
    assert pipeline.external_topics[-1] == "orders.out"
    assert (pipeline.retention.facts_ms, pipeline.retention.executions_ms) == (172_800_000, 604_800_000)
    first, second, third = pipeline.await_steps
    assert first.on_timeout == Value(json=b'{"order_id":"none"}')
    assert not first.live
    assert second.on_timeout == Skip()
    assert isinstance(second.transport, KafkaTransport)
    assert second.transport.request_key == "correlationId"
    assert (third.timeout_ms, third.strategy) == (90_000, "interactionId")
    assert (third.live, third.window, third.idle_ms) == (True, limits.WINDOW_DEFAULT, limits.LIVE_IDLE_DEFAULT_MS)
    assert run_step(pipeline, 0).retry.attempts == limits.RETRY_ATTEMPTS_DEFAULT
    assert run_step(pipeline, 0).call_timeout_ms == limits.CALL_TIMEOUT_DEFAULT_MS


def test_what_an_object_source_says_and_its_defaults(payments: str, load: Load) -> None:
    plain = load(payments).source
    assert isinstance(plain, ObjectSource)
    assert (plain.settle_ms, plain.ready_suffix, plain.after, plain.done, plain.failed) == (
        10_000,
        None,
        "keep",
        None,
        None,
    )
    said = "settle: PT30S, ready: {suffix: .ok}, after: move, done: d/, failed: ../f"
    moving = load(payments.replace("poll: PT10S", said)).source
    assert isinstance(moving, ObjectSource)
    folder = moving.location.parent
    assert (moving.settle_ms, moving.ready_suffix, moving.after) == (30_000, ".ok", "move")
    assert (moving.done, moving.failed) == (folder / "d", folder.parent / "f")


def test_what_was_done_is_known_at_least_as_long_as_executions_are_kept(payments: str, load: Load) -> None:
    assert load(payments).retention.keys_ms == 400 * 86_400_000
    assert load(f"{payments}\nretention: {{executions: P500D}}\n").retention.keys_ms == 500 * 86_400_000
    assert load(f"{payments}\nretention: {{keys: P30D}}\n").retention.keys_ms == 30 * 86_400_000


def test_functions_are_bound(payments: str, load: Load) -> None:
    text = payments.replace(
        "run: steps:finalize", "run: steps:later, callTimeout: PT2S, retry: {attempts: 5, base: PT1S}"
    )
    pipeline = load(text)
    assert [run_step(pipeline, index).is_async for index in (0, 2, 3, 4)] == [False, False, True, True]
    last = run_step(pipeline, 4)
    assert (last.retry.attempts, last.retry.base_ms, last.call_timeout_ms) == (5, 1_000, 2_000)
    answer = pipeline.await_step(1).output.validate_json(b'{"status":"Rejected","message":"no"}')
    assert not run_step(pipeline, 2).takes(answer)
    assert run_step(pipeline, 3).takes(answer)
    assert last.takes(answer)
    assert asyncio.run(run_step(pipeline, 3).function(answer)).reference == "no"


def test_a_projector_is_constructed_and_bound(payments: str, load: Load) -> None:
    completion = "      completion: {type: domain:Choice, projector: steps:Join}\n      transport:\n"
    step = load(payments.replace("      transport:\n", completion)).await_step(1)
    assert step.projection is not None
    assert step.projection.name == "steps:Join"
    assert step.answer_type.name == "domain:Choice"
    metadata = Completion(interaction_id="i", actor="", completed_at_ms=1_000)
    projected = step.projection.project(None, step.answer_type.validate_json(b'{"accepted":true}'), metadata)
    assert step.output.accepts(projected)
    assert metadata.completed_at.isoformat() == "1970-01-01T00:00:01+00:00"


def test_arms_that_leave_the_last_step_make_a_union(payments: str, load: Load) -> None:
    kept = [line for line in payments.splitlines() if "Unapproved, accepts" not in line and "Finalize" not in line]
    output = load("\n".join(kept)).output_type
    assert {arm.__name__ for arm in output.arms} == {"PaymentOutput", "UnapprovedPaymentStatus"}
    assert output.validate_json(b'{"status":"Rejected","message":"no"}').message == "no"


def test_one_step_may_take_several_arms(payments: str, load: Load) -> None:
    text = payments.replace(
        "accepts: domain:ApprovedPaymentStatus, ",
        "accepts: [domain:ApprovedPaymentStatus, domain:UnapprovedPaymentStatus], ",
    )
    text = "\n".join(line for line in text.splitlines() if "Process Unapproved" not in line)
    step = run_step(load(text), 2)
    assert step.accepts is not None
    assert len(step.accepts.arms) == 2


def test_app_replaces_the_prefix_and_keeps_the_name(payments: str, load: Load) -> None:
    pipeline = load(payments, app="copy")
    assert (pipeline.name, pipeline.app) == ("csv-payments", "copy")
    assert pipeline.external_topics == ("copy.payment.requests", "copy.payment.results")
    unnamed = load(payments.replace("name: csv-payments ", "# "), app="copy")
    assert (unnamed.name, unnamed.app) == ("csv-payments", "copy")


def test_environment(payments: str, load: Load) -> None:
    text = (
        payments.replace("window: 1024", 'window: "${WINDOW:-7}"')
        .replace("timeout: PT5M", "timeout: ${TIMEOUT:-PT1H}")
        .replace("location: out/", 'location: "${ROOT}/${EMPTY:-x}/out"')
        .replace("live: {", "live: {")
        .replace("payments-operations ", '"${OWNER}" ')
    )
    environ = {**ENVIRON, "ROOT": "/data", "EMPTY": "", "OWNER": "12"}
    pipeline = load(text, environ=environ)
    step = pipeline.await_step(1)
    assert (step.window, step.timeout_ms, step.owner) == (7, 3_600_000, "12")
    assert isinstance(pipeline.output, ObjectOutput)
    assert pipeline.output.location == Path("/data/x/out")
    assert load(text, environ={**environ, "WINDOW": "128"}).await_step(1).window == 128
    flag = payments.replace("live: {window: 1024, idle: PT30S}", "live: ${LIVE}")
    assert not load(flag, environ={**ENVIRON, "LIVE": "false"}).await_step(1).live


def test_overrides(payments: str, load: Load) -> None:
    pipeline = load(
        payments,
        overrides=(
            "steps.await-payment-provider.await.live.window=8192",
            "output.location=/data/out",
            "output.key={groupKey}",
            "kafka.partitions=5",
            "steps.2.retry.attempts=9",
            'input.include=["a*", b]',
            "tokens.keys.k2=0123",
            "tokens.active=k2",
            "steps.await-payment-provider.timeout=${T}",
            "steps.await-payment-provider.await.transport.request.topic={app}.asked",
        ),
        environ={**ENVIRON, "T": "PT9S"},
    )
    step = pipeline.await_step(1)
    assert isinstance(step.transport, KafkaTransport)
    assert (step.window, step.idle_ms, step.timeout_ms) == (8192, 30_000, 9_000)
    assert step.transport.request_topic == "csv-payments.asked"
    assert isinstance(pipeline.output, ObjectOutput)
    assert (pipeline.output.location, pipeline.output.key) == (Path("/data/out"), "{groupKey}")
    assert pipeline.partitions == 5
    assert run_step(pipeline, 2).retry.attempts == 9
    assert isinstance(pipeline.source, ObjectSource)
    assert pipeline.source.include == ("a*", "b")
    assert pipeline.tokens is not None
    assert pipeline.tokens.keys["k2"] == b"0123"


def test_an_override_turns_the_window_off_and_on(payments: str, load: Load) -> None:
    live = "steps.await-payment-provider.await.live"
    assert not load(payments, overrides=(f"{live}=false",)).await_step(1).live
    step = load(payments, overrides=(f"{live}=false", f"{live}.window=3")).await_step(1)
    assert (step.live, step.window) == (True, 3)


def test_an_override_may_stand_for_an_unset_variable(payments: str, load: Load) -> None:
    pipeline = load(payments, environ={}, overrides=("tokens.keys.k1=from the command line",))
    assert pipeline.tokens is not None
    assert pipeline.tokens.keys["k1"] == b"from the command line"


@pytest.mark.parametrize(
    ("override", "where", "message"),
    [
        ("no-equals", "no-equals", "needs a path and a value"),
        ("=x", "", "needs a path and a value"),
        ("steps.nowhere.timeout=PT1S", "steps.nowhere", "there is no 'nowhere'"),
        ("outptu.location=x", "outptu", "unknown key"),
        ("app=a b", "app", "is no name"),
    ],
)
def test_overrides_that_lead_nowhere(
    override: str, where: str, message: str, payments: str, problems: Problems
) -> None:
    found = problems(payments, overrides=(override,))
    assert [(problem.file, problem.line, problem.where) for problem in found] == [("--set", 0, where)]
    assert message in found[0].message


def test_an_override_of_a_merged_value_stays_in_its_place(payments: str, load: Load) -> None:
    text = payments.replace("retry", "retry").replace(
        "run: steps:approved}", "run: steps:approved, retry: &r {attempts: 2}}"
    )
    text = text.replace("run: steps:unapproved}", "run: steps:unapproved, retry: {<<: *r}}")
    pipeline = load(text, overrides=("steps.process-unapproved.retry.attempts=4",))
    assert [run_step(pipeline, index).retry.attempts for index in (2, 3)] == [2, 4]


def test_two_projects_with_equal_module_names_do_not_mix() -> None:
    first = load_pipeline(PAYMENTS, environ=ENVIRON)
    second = orders()
    again = load_pipeline(PAYMENTS, environ=ENVIRON)
    assert first.input_type.python_type is again.input_type.python_type
    assert run_step(first, 0).function is run_step(again, 0).function
    assert second.input_type.field_names() == ("order_id",)
    assert run_step(second, 0).function.__globals__["Order"] is second.input_type.python_type
    assert run_step(first, 0).function.__globals__["PaymentRecord"] is first.await_step(1).input.python_type
    assert sys.modules["domain"].__file__ == str(PAYMENTS.parent / "domain.py")
    assert str(PAYMENTS.parent) in sys.path
    assert str(ORDERS.parent) not in sys.path


def test_packages_of_a_project_follow_it(tmp_path: Path) -> None:
    loaded = []
    for name in ("one", "two"):
        package = tmp_path / name / "shop"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "types.py").write_text(f"from pydantic import BaseModel\nclass Item(BaseModel):\n    {name}: int\n")
        (package / "work.py").write_text(
            "from shop.types import Item\ndef same(item: Item) -> Item:\n    return item\n"
        )
        path = tmp_path / name / "pipeline.yaml"
        path.write_text(
            "app: a\nsteps:\n  - {name: S, input: shop.types:Item, output: shop.types:Item, run: shop.work:same}\n"
        )
        loaded.append(load_pipeline(path, environ={}))
    assert [pipeline.input_type.field_names() for pipeline in loaded] == [("one",), ("two",)]


def test_an_app_dir_below_a_package_leaves_that_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    project = Path(shutil.copytree(ORDERS.parent, tmp_path / "outer" / "orders"))
    for folder in (project, project.parent):
        (folder / "__init__.py").touch()
    domain = importlib.import_module("outer.orders.domain")
    load_pipeline(project / ORDERS.name, environ={})
    orders()
    assert sys.modules["outer.orders.domain"] is domain


def test_pipelines_load_in_threads() -> None:
    found: list[str] = []

    def load_both() -> None:
        found.extend(p.input_type.name for p in (orders(), load_pipeline(PAYMENTS, environ=ENVIRON)))

    threads = [threading.Thread(target=load_both) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(found)) == ["domain:Order", "domain:PaymentsFile"]
    assert len(found) == 8


@given(
    attempts=st.integers(1, 2_000),
    base=st.integers(0, 10**7),
    multiplier=st.floats(1, 1e6),
    cap=st.integers(1, 10**9),
)
def test_retry_delays_grow_to_the_cap(attempts: int, base: int, multiplier: float, cap: int) -> None:
    retry = Retry(attempts=3, base_ms=base, multiplier=multiplier, cap_ms=cap)
    delay = retry.delay_ms(attempts)
    assert retry.delay_ms(1) == min(base, cap)
    assert delay <= retry.delay_ms(attempts + 1) <= cap


def test_retry_by_the_rule() -> None:
    retry = Retry(attempts=3, base_ms=100, multiplier=2.0, cap_ms=1_000, non_retryable=("ValueError", "x:Y"))
    assert [retry.delay_ms(attempt) for attempt in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]
    assert retry.is_retryable(KeyError())
    assert not retry.is_retryable(ValueError())
    assert not retry.is_retryable(UnicodeError())
    assert not retry.is_retryable(type("Y", (Exception,), {"__module__": "x"})())


def test_step_ids() -> None:
    names = ("Await Payment Provider", "awaitPayment", "  CSV -- 2nd  try ", "Zahlung prüfen", "!!")
    assert [kebab_case(name) for name in names] == [
        "await-payment-provider",
        "await-payment",
        "csv-2nd-try",
        "zahlung-prufen",
        "",
    ]


def test_key_templates() -> None:
    assert template_fields("a{b}-{c.d}") == ("b", "c.d")
    assert template_fields("{{a}}") == ()
    assert fill_template("a{b}-{c}{{}}", {"b": "1", "c": "2"}.__getitem__) == "a1-2{}"
    for template in ("{", "{}", "{a!r}", "{a:3}"):
        with pytest.raises(ValueError):
            template_fields(template)


def test_cardinalities() -> None:
    assert [c for c in Cardinality if c.takes_many] == [Cardinality.MANY_TO_ONE, Cardinality.MANY_TO_MANY]
    assert [c for c in Cardinality if c.gives_many] == [Cardinality.ONE_TO_MANY, Cardinality.MANY_TO_MANY]


FRAGMENTS = [
    "{",
    "}",
    "[",
    "]",
    ": ",
    "- ",
    "&a ",
    "*a",
    "!!",
    "${",
    "${X}",
    "|",
    "\t",
    "\n",
    "'",
    '"',
    "null",
    "-1",
    "%",
    "~",
]


SHARED_FIXTURES = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


@settings(max_examples=150, deadline=None, suppress_health_check=SHARED_FIXTURES)
@given(data=st.data())
def test_a_damaged_file_ends_in_problems_or_a_pipeline(data: st.DataObject, payments: str, load: Load) -> None:
    start = data.draw(st.integers(0, len(payments)))
    end = data.draw(st.integers(start, min(len(payments), start + 40)))
    text = payments[:start] + data.draw(st.sampled_from(FRAGMENTS) | st.text(max_size=3)) + payments[end:]
    found = problems_or_none(load, text.encode(errors="replace").decode())
    if found is not None:
        assert found
        assert all(problem.message and problem.advice for problem in found)
        assert all(problem.line <= len(text.splitlines()) + 1 for problem in found)


def problems_or_none(load: Load, text: str) -> list[Problem] | None:
    """None: the text is a pipeline."""
    try:
        load(text)
    except PipelineError as error:
        return error.problems
    return None


VALUES = ["null", "[]", "{}", "7", "-1.5", "true", "[[1]]", "{a: {b: c}}", "''", '"${NOPE}"']


@settings(max_examples=200, deadline=None, suppress_health_check=SHARED_FIXTURES)
@given(line=st.integers(0, 30), value=st.sampled_from(VALUES))
def test_any_value_may_be_of_any_type(line: int, value: str, payments: str, load: Load) -> None:
    lines = payments.splitlines()
    line %= len(lines)
    key, colon, _ = lines[line].partition(":")
    lines[line] = f"{key}{colon} {value}" if colon and "{" not in key else f"  - {value}"
    found = problems_or_none(load, "\n".join(lines))
    assert found is None or all(problem.line <= len(lines) for problem in found)
