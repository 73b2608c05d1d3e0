"""Every kind of mistake in pipeline.yaml: the message, the place, and what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from schemas.errors import PipelineError, Problem
from tests.pipeline.conftest import ENVIRON, ORDERS, PAYMENTS, SECRET, Load, Problems
from topologies.reading.advice import NOT_YET
from topologies.reading.loading import format_problems, load_pipeline


class Mistake(NamedTuple):
    """One replacement in the example, and the one problem that it makes.

    Attributes:
        old: Text of the example.
        new: What the author wrote instead; the problem lies on the line of `at`, else of the first line of `new`.
    """

    old: str
    new: str
    where: str
    message: str
    advice: str
    at: str = ""


FIRST = "steps.process-csv-payments-input"
AWAIT = "steps.await-payment-provider"
APPROVED = "steps.process-approved"
FINAL = "steps.finalize-payment-output"
READ = "run: steps:read_payments"
APPROVED_ACCEPTS = "accepts: domain:ApprovedPaymentStatus,  "
FINAL_RUN = "run: steps:finalize"
OUTPUT_END = "format: csv}"
KAFKA_REQUEST = '"{app}.payment.requests", key: interactionId}'

MISTAKES = {
    # keys
    "unknown top-level key": Mistake("app: csv-payments ", "ap: 1\napp: csv-payments ", "ap", "unknown key 'ap'", "did you mean app?", "ap: 1"),
    "key of another format": Mistake("app: csv-payments ", "version: 2\napp: csv-payments ", "version", "unknown key", "remove it"),
    "unknown step key": Mistake(READ, f"{READ}, retires: 3", f"{FIRST}.retires", "unknown key 'retires'", "did you mean retry?"),
    "await key on a run step": Mistake(READ, f"{READ}, timeout: PT5M", f"{FIRST}.timeout", "unknown key", "add kind: await"),
    "run key on an await step": Mistake("    kind: await\n", "    kind: await\n    callTimeout: PT1S\n", f"{AWAIT}.callTimeout", "unknown key", "run steps", "callTimeout"),
    "operator on a step": Mistake(READ, f"{READ}, operator: x", f"{FIRST}.operator", "unknown key", "name a function with run"),
    "await.dispatch": Mistake("      transport:\n", "      dispatch: {}\n      transport:\n", f"{AWAIT}.await.dispatch", "unknown key", "transport says", "dispatch"),
    "await.scope": Mistake("      transport:\n", "      scope: item\n      transport:\n", f"{AWAIT}.await.scope", "unknown key", "cardinality", "scope"),
    "timeout in the wrong place": Mistake("      transport:\n", "      timeout: PT1S\n      transport:\n", f"{AWAIT}.await.timeout", "unknown key", "on the step", "timeout: PT1S"),
    "written twice": Mistake("app: csv-payments ", "app: csv-payments\napp: other ", "app", "written twice, first on line 2", "remove one", "app: other"),
    # values
    "text that is a number": Mistake("app: csv-payments ", "app: 12 ", "app", "must be text, not 12", 'in quotes: "12"'),
    "bare template": Mistake('"{groupKey}.out"', "{groupKey}", "output.key", "must be text, not a map", 'in quotes: "{groupKey}"'),
    "blank text": Mistake("owner: payments-operations", "owner: ''", f"{AWAIT}.owner", "blank", "write a value"),
    "empty value": Mistake("owner: payments-operations", "owner:", f"{AWAIT}.owner", "owner is empty", "remove the key"),
    "not a duration": Mistake("timeout: PT5M", "timeout: 5m", f"{AWAIT}.timeout", "must be an ISO-8601 duration, not 5m", "PT5M"),
    "duration in months": Mistake("timeout: PT5M", "timeout: P1M", f"{AWAIT}.timeout", "must be an ISO-8601 duration", "P7D"),
    "zero duration": Mistake("timeout: PT5M", "timeout: PT0S", f"{AWAIT}.timeout", "out of bounds", "above zero"),
    "missing timeout": Mistake("    timeout: PT5M\n", "", f"{AWAIT}.timeout", "timeout is missing", "timeout: PT5M", "name: Await Payment Provider"),
    "missing app": Mistake("app: csv-payments ", "# ", "app", "app is missing", "write app", "name: csv-payments"),
    "bad app": Mistake("app: csv-payments ", "app: csv/payments ", "app", "is no name", "letters"),
    "window too large": Mistake("window: 1024", "window: 65537", f"{AWAIT}.await.live.window", "65537 is out of bounds", "from 1 to 65536"),
    "window zero": Mistake("window: 1024", "window: 0", f"{AWAIT}.await.live.window", "0 is out of bounds", "from 1 to 65536"),
    "window no number": Mistake("window: 1024", "window: wide", f"{AWAIT}.await.live.window", "must be a whole number, not wide", "from 1"),
    "window true": Mistake("window: 1024", "window: true", f"{AWAIT}.await.live.window", "must be a whole number, not true", "from 1"),
    "live no flag": Mistake("live: {window: 1024, idle: PT30S}", "live: maybe", f"{AWAIT}.await.live", "must be true or false", "true or false"),
    "unknown cardinality": Mistake("cardinality: ONE_TO_MANY", "cardinality: EXPANSION", f"{FIRST}.cardinality", "unknown cardinality", "write ONE_TO_MANY"),
    "misspelt cardinality": Mistake("cardinality: ONE_TO_MANY", "cardinality: ONE_TOO_MANY", f"{FIRST}.cardinality", "unknown cardinality", "did you mean ONE_TO_MANY?"),
    "unknown kind": Mistake("kind: await", "kind: wait", f"{AWAIT}.kind", "unknown kind 'wait'", "kind: await"),
    "kind missing": Mistake("    kind: await\n", "", f"{AWAIT}.await", "needs its kind", "add kind: await", "    await:"),
    "steps no list": Mistake(READ + "}\n", READ + "}\n  - 7\n", "steps.1", "a step must be a map, not 7", "- {name", "  - 7"),
    "retry attempts": Mistake(READ, f"{READ}, retry: {{attempts: 0}}", f"{FIRST}.retry.attempts", "out of bounds", "from 1"),
    "retry multiplier": Mistake(READ, f"{READ}, retry: {{multiplier: 0.5}}", f"{FIRST}.retry.multiplier", "must be a number of at least 1", "from 1"),
    "retry no map": Mistake(READ, f"{READ}, retry: 3", f"{FIRST}.retry", "must be a map of keys, not 3", "retry: {...}"),
    # names and steps
    "no name": Mistake("name: Process Approved,  ", "", "steps.2.name", "name is missing", "kebab case", "domain:ApprovedPaymentStatus"),
    "name without letters": Mistake("name: Process Approved, ", "name: '!!', ", "steps.2.name", "makes no step id", "letters and digits"),
    "duplicate step name": Mistake("name: Process Unapproved,", "name: process  approved,", "steps.process-approved.name", "two steps have the id 'process-approved'", "another name"),
    # references
    "not module:name": Mistake(READ, "run: read_payments", f"{FIRST}.run", "is not module:name", "domain:Payment"),
    "no such module": Mistake(READ, "run: stepz:read_payments", f"{FIRST}.run", "there is no module 'stepz'", "create payments/stepz.py"),
    "no such function": Mistake(READ, "run: steps:read_payment", f"{FIRST}.run", "steps has no 'read_payment'", "did you mean steps:read_payments?"),
    "no such type": Mistake("input: domain:PaymentsFile", "input: domain:PaymentFile", f"{FIRST}.input", "domain has no 'PaymentFile'", "did you mean domain:PaymentsFile?"),
    "failing module": Mistake(READ, "run: broken:read", f"{FIRST}.run", "importing broken fails: RuntimeError in broken.py:3: no such luck", "correct the module"),
    "module that needs another": Mistake(READ, "run: needy:read", f"{FIRST}.run", "needs the module 'not_installed_anywhere'", "install not_installed_anywhere"),
    "None": Mistake(READ, "run: domain:NOTHING", f"{FIRST}.run", "is None", "name a type"),
    "no function": Mistake(READ, "run: domain:NUMBER", f"{FIRST}.run", "is no function", "one argument"),
    "function without argument": Mistake(READ, "run: steps:no_argument", f"{FIRST}.run", "cannot be called with one argument", "exactly one"),
    "function of two arguments": Mistake(READ, "run: steps:two_arguments", f"{FIRST}.run", "cannot be called with one argument", "exactly one"),
    "generator in ONE_TO_ONE": Mistake("run: steps:approved", "run: steps:read_payments", f"{APPROVED}.run", "yields, but the step is ONE_TO_ONE", "write ONE_TO_MANY"),
    "run missing": Mistake(f", {READ}", "", f"{FIRST}.run", "run is missing", "run: module:function", "Process Csv Payments"),
    "no payload type": Mistake("input: domain:PaymentsFile", "input: domain:NUMBER", f"{FIRST}.input", "is not a payload type", "pydantic model"),
    "look-alike union": Mistake("input: domain:PaymentsFile", "input: domain:Twins", f"{FIRST}.input", "cannot be told apart in JSON", "Literal"),
    "lossy model": Mistake("input: domain:PaymentsFile", "input: domain:Lossy", f"{FIRST}.input", "hidden is excluded from JSON", "exclude"),
    "alias for writing only": Mistake("input: domain:PaymentsFile", "input: domain:Aliased", f"{FIRST}.input", "written as 'shown', which validation does not read", "alias"),
    # types between steps
    "types do not meet": Mistake("input: domain:PaymentRecord\n", "input: domain:PaymentOutput\n    idempotencyKeyFields: []\n", f"{AWAIT}.input", "PaymentRecord from the step before does not fit the input domain:PaymentOutput", "take PaymentRecord as input"),
    "an arm that nobody takes": Mistake("  - {name: Process Unapproved, accepts: domain:UnapprovedPaymentStatus, output: domain:PaymentOutput, run: steps:unapproved}\n", "", f"{FINAL}.input", "UnapprovedPaymentStatus from the step before does not fit", "add a step with accepts: for UnapprovedPaymentStatus", "Finalize"),
    "unreachable branch": Mistake(APPROVED_ACCEPTS, "accepts: domain:PaymentsFile,", f"{APPROVED}.accepts", "unreachable branch: PaymentsFile never gets here", "accept one of: ApprovedPaymentStatus, UnapprovedPaymentStatus"),
    "cyclic branch": Mistake(APPROVED_ACCEPTS, "accepts: domain:Special, ", f"{APPROVED}.accepts", "cyclic branch: Special is made only by 'Finalize Payment Output'", "behind"),
    "branch taken before": Mistake("run: steps:approved}\n", "run: steps:approved}\n  - {name: Again, accepts: domain:ApprovedPaymentStatus, output: domain:PaymentOutput, run: steps:approved}\n", "steps.again.accepts", "is taken by 'Process Approved' before", "remove one", "Again"),
    "accepts and another input": Mistake(APPROVED_ACCEPTS, f"{APPROVED_ACCEPTS} input: domain:PaymentsFile, ", f"{APPROVED}.input", "does not take the accepted ApprovedPaymentStatus", "remove input"),
    "accepts names nothing": Mistake(APPROVED_ACCEPTS, "accepts: [], ", f"{APPROVED}.accepts", "accepts names no type", "arms of the union"),
    # await
    "unknown key field": Mistake("[csvPaymentsInputFilePath, ", "[csvPath, ", f"{AWAIT}.idempotencyKeyFields", "domain:PaymentRecord has no field 'csvPath'", "csvId"),
    "key field twice": Mistake("csvId, recipient,", "csvId, csvId,", f"{AWAIT}.idempotencyKeyFields", "csvId is named twice", "remove one"),
    "unknown strategy": Mistake("strategy: signedResumeToken", "strategy: signedToken", f"{AWAIT}.await.correlation.strategy", "unknown strategy 'signedToken'", "did you mean signedResumeToken?"),
    "unknown transport": Mistake("type: kafka ", "type: kafak ", f"{AWAIT}.await.transport.type", "unknown type 'kafak'", "did you mean kafka?"),
    "transport without type": Mistake("        type: kafka ", "        # ", f"{AWAIT}.await.transport.type", "type is missing", "kafka, interaction-api", "request:"),
    "unknown record key": Mistake("key: interactionId}", "key: payment}", f"{AWAIT}.await.transport.request.key", "unknown key 'payment'", "interactionId, correlationId"),
    "no response": Mistake('        response: {topic: "{app}.payment.results"}\n', "", f"{AWAIT}.await.transport.response", "response is missing", "response: {topic", "type: kafka"),
    "bad topic": Mistake("{app}.payment.results", "{app}/results", f"{AWAIT}.await.transport.response.topic", "is no topic name", "letters"),
    "unknown placeholder": Mistake("{app}.payment.results", "{name}.results", f"{AWAIT}.await.transport.response.topic", "placeholder other than {app}", "only {app}"),
    "own topic": Mistake("{app}.payment.results", "{app}.completions", f"{AWAIT}.await.transport.response.topic", "one of the app's own topics", "another"),
    "one topic for both": Mistake("{app}.payment.results", "{app}.payment.requests", f"{AWAIT}.await.transport.response.topic", "share a topic", "of its own", "response: {topic"),
    "consumer group": Mistake("        type: kafka ", "        consumerGroup: x\n        type: kafka ", f"{AWAIT}.await.transport.consumerGroup", "unknown key", "<app>.ingress", "consumerGroup"),
    "completion without projector": Mistake("      transport:\n", "      completion: {type: domain:Choice}\n      transport:\n", f"{AWAIT}.await.completion.projector", "projector is missing", "projector: module:Projector", "completion:"),
    "projector of two arguments": Mistake("      transport:\n", "      completion: {type: domain:Choice, projector: steps:JoinTwo}\n      transport:\n", f"{AWAIT}.await.completion.projector", "does not project (request, completion, metadata)", "write a class", "completion:"),
    "async projector": Mistake("      transport:\n", "      completion: {type: domain:Choice, projector: steps:JoinLater}\n      transport:\n", f"{AWAIT}.await.completion.projector", "is async", "return the output", "completion:"),
    "projector with arguments": Mistake("      transport:\n", "      completion: {type: domain:Choice, projector: steps:NeedsMore}\n      transport:\n", f"{AWAIT}.await.completion.projector", "cannot be constructed", "no constructor arguments", "completion:"),
    "onTimeout says nothing": Mistake("    owner:", "    onTimeout: {skip: false}\n    owner:", f"{AWAIT}.onTimeout", "needs skip: true or a value", "one of the two", "onTimeout"),
    "onTimeout says both": Mistake("    owner:", "    onTimeout: {skip: true, value: {}}\n    owner:", f"{AWAIT}.onTimeout", "needs skip: true or a value", "one of the two", "onTimeout"),
    "onTimeout of another type": Mistake("    owner:", "    onTimeout: {value: {status: Rejected}}\n    owner:", f"{AWAIT}.onTimeout.value", "the value is not a domain:PaymentStatus", "output type", "onTimeout"),
    "onError says nothing": Mistake(FINAL_RUN, f"{FINAL_RUN}, onError: {{skip: false}}", f"{FINAL}.onError", "needs skip: true or deadLetter: true", "one of the two", "onError: {"),
    "onError says both": Mistake(FINAL_RUN, f"{FINAL_RUN}, onError: {{skip: true, deadLetter: true}}", f"{FINAL}.onError", "needs skip: true or deadLetter: true", "one of the two", "onError: {"),
    "onError says something else": Mistake(FINAL_RUN, f"{FINAL_RUN}, onError: {{deadLetter: true, retry: 3}}", f"{FINAL}.onError.retry", "unknown key", "write retry on the step", "onError: {"),
    "onError before the await": Mistake(READ, f"{READ}, onError: {{skip: true}}", f"{FIRST}.onError", "this step runs for no such item", "remove it", "onError: {"),
    "onError on an aggregate": Mistake("- {name: Finalize Payment Output, cardinality: ONE_TO_ONE", "- {name: Finalize Payment Output, onError: {skip: true}, cardinality: MANY_TO_ONE", f"{FINAL}.onError", "this step runs for no such item", "remove it", "onError"),
    "onError on an await": Mistake("    owner:", "    onError: {skip: true}\n    owner:", f"{AWAIT}.onError", "unknown key", "write onTimeout", "onError"),
    # ends
    "unknown source": Mistake("from: object", "from: folder", "input.from", "unknown from 'folder'", "object, topic, checkpoint"),
    "unknown provider": Mistake("from: object, provider: filesystem", "from: object, provider: s3", "input.provider", "unknown provider 's3'", "filesystem"),
    "topic source of another type": Mistake('{from: object, provider: filesystem, location: in/, include: ["*.csv"], poll: PT10S}', "{from: topic, topic: in, type: domain:PaymentOutput}", "input.type", "does not fit the first step's input domain:PaymentsFile", "write domain:PaymentsFile", "from: topic") ,
    "object key without group": Mistake('"{groupKey}.out"', "all.out", "output.key", "names one object for all executions", "{groupKey}.out"),
    "object key of a day": Mistake('"{groupKey}.out"', '"{date}.out"', "output.key", "names one object for all executions", "{groupKey}.out"),
    "object key of groups without group": Mistake('"{groupKey}.out", format: csv}', '"{executionId}.out", format: csv, groupBy: reference}', "output.key", "must hold {groupKey}", "{groupKey}.out"),
    "object key of something else": Mistake('"{groupKey}.out"', '"{group}.out"', "output.key", "has a placeholder {group}", "{inputStem}"),
    "unfinished object key": Mistake('"{groupKey}.out"', '"{groupKey.out"', "output.key", "", "{groupKey}.out"),
    "object key that escapes": Mistake('"{groupKey}.out"', '"../{groupKey}.out"', "output.key", "leaves the location", "below"),
    "unknown group field": Mistake(OUTPUT_END, "format: csv, groupBy: bank}", "output.groupBy", "domain:PaymentOutput has no field 'bank'", "fee, reference"),
    "unknown format": Mistake(OUTPUT_END, "format: xml}", "output.format", "unknown format 'xml'", "csv"),
    "settle is no duration": Mistake("poll: PT10S", "settle: 10s", "input.settle", "must be an ISO-8601 duration", "PT30S"),
    "ready says nothing": Mistake("poll: PT10S", "ready: {}", "input.ready.suffix", "suffix is missing", "ready: {suffix: .done}"),
    "ready is a path": Mistake("poll: PT10S", "ready: {suffix: /done}", "input.ready.suffix", "is no end of a file name", "ready: {suffix: .done}"),
    "unknown after": Mistake("poll: PT10S", "after: remove", "input.after", "unknown after 'remove'", "did you mean move?"),
    "move to nowhere": Mistake("poll: PT10S", "after: move, failed: f/", "input.done", "done is missing", "write done: a folder", "input:"),
    "failed ones to nowhere": Mistake("poll: PT10S", "after: move, done: d/", "input.failed", "failed is missing", "write failed: a folder", "input:"),
    "a place for nothing": Mistake("poll: PT10S", "done: d/", "input.done", "nothing is moved there with after: keep", "write after: move"),
    "a place for what is deleted": Mistake("poll: PT10S", "after: delete, done: d/", "input.done", "nothing is moved there with after: delete", "remove done"),
    "moved to where it is": Mistake("poll: PT10S", "after: move, done: in/, failed: f/", "input.done", "moved to where they are", "another folder"),
    "failed among the others": Mistake("poll: PT10S", "after: move, done: d/, failed: d/", "input.failed", "among those that did not", "another folder"),
    "no location": Mistake("location: in/, ", "", "input.location", "location is missing", "pipeline's folder", "input:"),
    # the rest
    "no secret": Mistake('tokens: {active: k1, keys: {k1: "${KAWAIT_TOKEN_K1}"}}\n', "", f"{AWAIT}.await.correlation.strategy", "signedResumeToken needs a secret", "tokens: {active: k1", "correlation"),
    "active key unknown": Mistake("active: k1", "active: k2", "tokens.active", "there is no key 'k2'", "use one of: k1"),
    "empty secret": Mistake('"${KAWAIT_TOKEN_K1}"', '""', "tokens.keys.k1", "empty or no text", "${KAWAIT_TOKEN_K1}"),
    "bad key id": Mistake('{k1: "$', '{"k.1": x, k1: "$', "tokens.keys.k.1", "is no key id", "letters"),
    "no partitions": Mistake("tokens:", "kafka: {partitions: 0}\ntokens:", "kafka.partitions", "0 is out of bounds", "from 1", "kafka:"),
    "retention": Mistake("tokens:", "retention: {facts: forever}\ntokens:", "retention.facts", "must be an ISO-8601 duration", "P7D", "retention:"),
    "keys forgotten first": Mistake("tokens:", "retention: {executions: P9D, keys: P8D}\ntokens:", "retention.keys", "would be forgotten before", "at least what retention.executions says", "retention:"),
    "registry": Mistake("tokens:", "schemas: {registry: here}\ntokens:", "schemas.registry", "is no URL", "http://", "schemas:"),
    # environment
    "unset variable": Mistake("owner: payments-operations", 'owner: "${OWNER}"', f"{AWAIT}.owner", "the environment variable OWNER is not set", "${OWNER:-default}"),
    "incomplete variable": Mistake("owner: payments-operations", 'owner: "${OWNER"', f"{AWAIT}.owner", "is no complete ${NAME}", "${NAME}"),
}  # fmt: skip

MORE = {
    # mistakes whose replacement needs a second one to stay single
    "topic source of another type": (
        'key: "{groupKey}.out", format: csv}',
        'key: "{groupKey}.out", groupBy: reference}',
    ),
    "types do not meet": ("    idempotencyKeyFields: [csvP", "    # [csvP"),
    "cyclic branch": (
        "input: domain:PaymentOutput, output: domain:PaymentOutput",
        "input: domain:PaymentOutput, output: domain:Special",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_one_mistake_is_one_problem_with_place_and_advice(name: str, payments: str, problems: Problems) -> None:
    mistake = MISTAKES[name]
    assert mistake.old in payments
    text = payments.replace(mistake.old, mistake.new, 1)
    if name in MORE:
        text = text.replace(*MORE[name], 1)
    found = problems(text)
    expected = [problem for problem in found if problem.where == mistake.where and mistake.message in problem.message]
    assert len(expected) == 1, format_problems(found)
    assert mistake.advice in expected[0].advice
    marker = mistake.at or mistake.new.strip().splitlines()[0]
    assert marker in text.splitlines()[expected[0].line - 1], f"line {expected[0].line}"
    others = [problem for problem in found if problem not in expected]
    assert len(others) <= SIDE_EFFECTS.get(name, 0), format_problems(found)


SIDE_EFFECTS = {
    "unreachable branch": 1,  # the arm that now reaches the last step
    "cyclic branch": 1,
    "an arm that nobody takes": 0,
}

SECOND_AWAIT = """\
  - name: Second
    kind: await
    input: domain:PaymentStatus
    output: domain:PaymentStatus
    timeout: PT1S
    await: {transport: {type: kafka, request: {topic: a}, response: {topic: b}}}
"""

UNSUPPORTED = {
    "transport interaction-api": ("type: kafka ", "type: interaction-api "),
    "transport webhook": ("type: kafka ", "type: webhook "),
    "transport sqs": ("type: kafka ", "type: sqs "),
    "aggregate await": ("    cardinality: ONE_TO_ONE\n", "    cardinality: MANY_TO_ONE\n"),
    "await branch": ("    input: domain:PaymentRecord\n", "    accepts: domain:PaymentRecord\n"),
    "aggregate branch": (APPROVED_ACCEPTS, f"{APPROVED_ACCEPTS} cardinality: MANY_TO_ONE,"),
    "nested await": (
        "  - {name: Process Approved, ",
        SECOND_AWAIT + "  - {name: Process Approved, ",
    ),
    "business correlation": ("{strategy: signedResumeToken}", "{requestField: csvId, responseField: status}"),
    "budget": ("    owner:", "    budget: {unresolved: 100}\n    owner:"),
    "remindAfter": ("    owner:", "    remindAfter: PT1M\n    owner:"),
    "checkpoint": (
        'output: {to: object, provider: filesystem, location: out/, key: "{groupKey}.out", format: csv}',
        "output: {to: checkpoint, publication: paid, idempotencyKeyFields: [reference]}",
    ),
    "avro": (KAFKA_REQUEST, '"{app}.payment.requests", format: avro}'),
}


def test_every_unsupported_feature_has_an_example() -> None:
    assert set(UNSUPPORTED) == set(NOT_YET)


@pytest.mark.parametrize("feature", UNSUPPORTED)
def test_what_cannot_run_yet_is_refused_clearly(feature: str, payments: str, problems: Problems) -> None:
    old, new = UNSUPPORTED[feature]
    assert old in payments
    message, advice = NOT_YET[feature]
    found = problems(payments.replace(old, new, 1))
    assert (message, advice) in {(problem.message, problem.advice) for problem in found}, format_problems(found)


@pytest.mark.parametrize("feature", ["budget", "remindAfter", "avro", "aggregate branch"])
def test_a_removed_row_switches_the_feature_on(
    feature: str, payments: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(NOT_YET, feature)
    assert load(payments.replace(*UNSUPPORTED[feature], 1)).app


@pytest.mark.parametrize(
    ("key", "message"),
    [("budget: {unresolved: 11}", "cannot be shared by 12 partitions"), ("remindAfter: PT5M", "no earlier than")],
)
def test_rules_of_unsupported_keys_hold_already(key: str, message: str, payments: str, problems: Problems) -> None:
    found = problems(payments.replace("    owner:", f"    {key}\n    owner:"))
    assert any(message in problem.message for problem in found)


def test_all_errors_are_reported_at_once_and_in_file_order(payments: str, problems: Problems) -> None:
    text = (
        payments.replace("timeout: PT5M", "timeout: soon")
        .replace("window: 1024", "window: 0")
        .replace(READ, "run: steps:nothing")
        .replace("domain:PaymentStatus ", "domain:Nothing ")
        .replace("active: k1", "active: k9")
        .replace("app: csv-payments ", "app: csv-payments\nzoo: 1 ")
    )
    found = problems(text, overrides=("steps.nowhere.name=x",))
    assert [problem.where for problem in found] == [
        "zoo",
        f"{FIRST}.run",
        f"{AWAIT}.output",
        f"{AWAIT}.timeout",
        f"{AWAIT}.await.live.window",
        "tokens.active",
        "steps.nowhere",
    ]
    lines = [problem.line for problem in found[:-1]]
    assert lines == sorted(lines)
    assert lines[0] == 3


def test_a_failing_module_is_reported_once(payments: str, problems: Problems) -> None:
    found = problems(payments.replace("domain:", "broken:"))
    assert len([problem for problem in found if "no such luck" in problem.message]) == 1


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("# only words\n", 1, "the file is empty"),
        ("- a\n- b\n", 1, "no map of keys"),
        ("app: x\nsteps: [\n", 3, "not valid YAML"),
        ("app: x\n\tsteps: []\n", 2, "not valid YAML"),
        ("app: x\nname: {app}.y\n", 2, "not valid YAML"),
        ("app: x\n---\napp: y\n", 2, "not valid YAML"),
        ("app: x\nsteps: []\n", 2, "there is no step"),
        ("app: x\n", 1, "steps is missing"),
        ("app: x\nsteps: 7\n", 2, "must be a list, not 7"),
        ("app: &a [*a]\nsteps: []\n", 1, "cyclic"),
        ("app: x\n? [a, b]\n: c\nsteps: []\n", 2, "a key is a map or list"),
        ("app: x\nname: !!python/name:os.system x\nsteps: []\n", 2, "tag"),
        ("app: " + "[" * 200 + "]" * 200, 1, "nested deeper than 100"),
        ("app: " + "[" * 5000 + "]" * 5000, 1, "nested"),
    ],
)
def test_text_that_is_no_pipeline(text: str, line: int, message: str, problems: Problems) -> None:
    found = problems(text)
    assert any(problem.line == line and message in problem.message for problem in found), format_problems(found)


def test_aliases_that_multiply_are_bounded(problems: Problems) -> None:
    levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))
    found = problems(f"app: x\na0: &a0 [1]\n{levels}\n")
    assert any("once aliases are expanded" in problem.message for problem in found)


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(b"app: caf\xe9\n")
    with pytest.raises(PipelineError, match="not valid YAML"):
        load_pipeline(path, environ={})


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(PipelineError, match="cannot be read"):
        load_pipeline(tmp_path / name, environ={})


def test_the_secret_is_in_no_message_and_no_representation(payments: str, load: Load, problems: Problems) -> None:
    assert SECRET not in repr(load(payments))
    variants = (
        payments.replace("active: k1", "active: k9"),
        payments.replace('keys: {k1: "${KAWAIT_TOKEN_K1}"}', 'keys: "${KAWAIT_TOKEN_K1}"'),
        payments.replace("poll: PT10S", 'poll: "${KAWAIT_TOKEN_K1}"'),
        payments.replace("from: object", 'from: "${KAWAIT_TOKEN_K1}"'),
        payments.replace("window: 1024", 'window: "${KAWAIT_TOKEN_K1}"'),
        payments.replace("kind: await", 'kind: "${KAWAIT_TOKEN_K1}"'),
        payments.replace("app: csv-payments ", 'app: "${KAWAIT_TOKEN_K1}" '),
        payments.replace(READ, 'run: "${KAWAIT_TOKEN_K1}"'),
        payments.replace('key: "{groupKey}.out"', 'key: "${KAWAIT_TOKEN_K1}"'),
        payments.replace('"{app}.payment.results"', '"${KAWAIT_TOKEN_K1}"'),
    )
    for text in variants:
        assert SECRET not in format_problems(problems(text)), text
    found = problems(payments, overrides=(f"tokens.keys={SECRET}",))
    assert SECRET not in format_problems(found)


def test_the_output_of_check_is_one_line_a_problem() -> None:
    text = format_problems(
        [Problem("p.yaml", 7, "app", "app is missing", "write app"), Problem("p.yaml", 0, "", "a", "b")]
    )
    assert text == "p.yaml:7: app: app is missing; write app\np.yaml: a; b"


@pytest.mark.parametrize("name", ["schemas", "state", "topologies", "connectors", "streams", "kawait", "tests"])
def test_a_project_with_a_module_named_like_ours_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(ORDERS.read_text())
    (tmp_path / f"{name}.py").touch()
    with pytest.raises(PipelineError) as caught:
        load_pipeline(tmp_path / "pipeline.yaml", environ={})
    assert [problem.where for problem in caught.value.problems] == ["app-dir"]
    assert f"'{name}.py'" in caught.value.problems[0].message
    assert "package of your own" in caught.value.problems[0].advice


def test_packages_named_like_ours_are_refused_too_and_other_folders_are_not(tmp_path: Path) -> None:
    for name in ("domain.py", "steps.py", "pipeline.yaml"):
        (tmp_path / name).write_text((ORDERS.parent / name).read_text())
    for folder in ("tests", "state"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tests" / "test_mine.py").touch()
    assert load_pipeline(tmp_path / "pipeline.yaml", environ={}).app == "orders"
    (tmp_path / "state" / "mine.py").touch()
    (tmp_path / "tests" / "__init__.py").touch()
    with pytest.raises(PipelineError) as caught:
        load_pipeline(tmp_path / "pipeline.yaml", environ={})
    assert len(caught.value.problems) == 2


def test_an_app_dir_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(PipelineError) as caught:
        load_pipeline(PAYMENTS, environ=ENVIRON, app_dir=tmp_path / "nowhere")
    assert [problem.where for problem in caught.value.problems] == ["app-dir"]
