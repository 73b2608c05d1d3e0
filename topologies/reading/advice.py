"""What to write instead: advice on keys of other formats, and the one list of what this version does not run.

`NOT_YET` names what SURFACE names and the engine cannot do; `kawait check` refuses it. A row removed there is a feature switched on.
"""

from __future__ import annotations

from typing import Final

NOT_YET: Final[dict[str, tuple[str, str]]] = {
    "transport interaction-api": ("the interaction-api transport is not supported yet", "use type: kafka"),
    "transport webhook": ("the webhook transport is not supported yet", "use type: kafka"),
    "transport sqs": ("the sqs transport is not supported yet", "use type: kafka"),
    "aggregate await": ("await steps other than ONE_TO_ONE are not supported yet", "write cardinality: ONE_TO_ONE"),
    "await branch": ("accepts on an await step is not supported yet", "let the await take every item that reaches it"),
    "aggregate branch": (
        "accepts on an aggregate step is not supported yet",
        "branch in a ONE_TO_ONE or ONE_TO_MANY step",
    ),
    "nested await": (
        "an await among the steps that follow an itemised await is not supported yet",
        "put a MANY_TO_ONE or MANY_TO_MANY step between the two",
    ),
    "business correlation": ("requestField and responseField are not supported yet", "correlate by interactionId"),
    "budget": ("budget is not supported yet", "bound the requests by await.live.window"),
    "remindAfter": ("remindAfter is not supported yet", "remove it"),
    "checkpoint": ("checkpoint ends are not supported yet", "use a topic"),
    "avro": ("avro payloads are not supported yet", "write format: json"),
}
"""Feature -> what is wrong, what to write instead."""

TOP_HINTS = {
    "appName": "write app",
    "version": "remove it: there is one version of this format",
    "transport": "write it below await of the step",
    "sources": "write input: {from: object, ...}",
    "publish": "write output: {to: object, ...}",
    "types": "define pydantic models in a module and name them as module:name",
    "unions": "define the union in a module and name it as module:name",
    "aspects": "remove it: a step does such work",
    "source": "write input",
}
_INLINE = "remove it: name a function with run, which may call a remote party and have retry and callTimeout"
_ONLY_AWAIT = "it belongs to await steps; add kind: await"
_ONLY_RUN = "it belongs to run steps; an await waits for its answer until timeout"
COMMON_HINTS = {
    "id": "remove it: the step id is the name in kebab case",
    "inputTypeName": "write input",
    "outputTypeName": "write output",
    "java": "write input and output as module:name",
    "service": _INLINE,
    "operator": _INLINE,
    "delegate": _INLINE,
    "remote": _INLINE,
    "execution": _INLINE,
    "command": _INLINE,
    "query": _INLINE,
    "inboundMapper": "remove it: write await.completion: {type, projector}",
    "outboundMapper": "remove it: the request is the input type",
    "idempotency": "write idempotencyKeyFields: [...]",
    "terminal": "remove it: the last step is the terminal one",
    "batchSize": "remove it",
    "batchTimeoutMs": "remove it",
    "parallel": "remove it: await.live.window bounds what is in flight",
    "flowRole": "remove it",
    "flowBoundaryRationale": "remove it: write a comment",
    "when": "write accepts: with arms of the union",
    "condition": "write accepts: with arms of the union",
}
_AWAIT_KEYS = (
    "timeout",
    "idempotencyKeyFields",
    "owner",
    "await",
    "onTimeout",
    "remindAfter",
    "assignee",
    "group",
    "budget",
)
RUN_HINTS = {**COMMON_HINTS, **dict.fromkeys(_AWAIT_KEYS, _ONLY_AWAIT)}
AWAIT_HINTS = {
    **COMMON_HINTS,
    "retry": _ONLY_RUN,
    "callTimeout": _ONLY_RUN,
    "onError": "it belongs to run steps; write onTimeout for an item that is not answered",
    "run": "an await asks an outside party; remove run or kind",
}
INSIDE_AWAIT_HINTS = {
    "dispatch": "remove it: the transport says where requests go",
    "scope": "remove it: the cardinality and the steps before say what an await is for",
    "timeout": "write it on the step, beside await",
    "idempotencyKeyFields": "write it on the step, beside await",
    "window": "write live: {window: N}",
    "strategy": "write correlation: {strategy: ...}",
}
KAFKA_HINTS = {
    "consumer": "remove it: the group is <app>.ingress",
    "consumerGroup": "remove it: the group is <app>.ingress",
    "headers": "remove it: the request carries kawait's headers",
    "topic": "write request: {topic: ...} and response: {topic: ...}",
}
CARDINALITY_HINTS = {
    "EXPANSION": "write ONE_TO_MANY",
    "REDUCTION": "write MANY_TO_ONE",
    "COLLAPSE": "write MANY_TO_ONE",
    "SIDE_EFFECT": "write ONE_TO_ONE",
}
TOKENS_ADVICE = 'write tokens: {active: k1, keys: {k1: "${KAWAIT_TOKEN_K1}"}} and set KAWAIT_TOKEN_K1'
TIMEOUT_ADVICE = "write how long the outside party may take, for example timeout: PT5M"
TRANSPORT_ADVICE = 'write transport: {type: kafka, request: {topic: "..."}, response: {topic: "..."}}'

ENDS_ADVICE = "write one of: object, topic, checkpoint"
