"""Topics and permissions for those who create them with other tools: Strimzi resources and commands of Kafka's own tools."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import yaml

from schemas.topics import Acl, TopicSettings

STRIMZI_API = "kafka.strimzi.io/v1beta2"
CLUSTER_LABEL = "strimzi.io/cluster"
CLUSTER_NAME = "my-cluster"
"""Stands for the user's own; a Strimzi resource must name its cluster."""

BOOTSTRAP = '"$BOOTSTRAP"'

_OPERATIONS = {"READ": "Read", "WRITE": "Write", "DESCRIBE": "Describe", "DESCRIBE_CONFIGS": "DescribeConfigs"}
_RESOURCES = {"TOPIC": "topic", "GROUP": "group", "TRANSACTIONAL_ID": "transactionalId"}
_FLAGS = {"TOPIC": "--topic", "GROUP": "--group", "TRANSACTIONAL_ID": "--transactional-id"}


def topic_commands(specs: Sequence[TopicSettings]) -> str:
    """`kafka-topics.sh --create` for each topic."""
    return "\n".join(_topic_command(spec) for spec in specs)


def _topic_command(spec: TopicSettings) -> str:
    words = ["--create", "--if-not-exists", "--topic", spec.name, "--partitions", str(spec.partitions)]
    if spec.replication_factor > 0:
        words += ["--replication-factor", str(spec.replication_factor)]
    for name, value in sorted(spec.config.items()):
        words += ["--config", f"{name}={value}"]
    return f"kafka-topics.sh --bootstrap-server {BOOTSTRAP} {shlex.join(words)}"


def acl_commands(app: str, acls: Iterable[Acl]) -> str:
    """`kafka-acls.sh --add` for each permission; principals are named `<app>-<principal>`."""
    return "\n".join(_acl_command(app, acl) for acl in acls)


def _acl_command(app: str, acl: Acl) -> str:
    words = ["--add", "--allow-principal", f"User:{_user(app, acl)}"]
    for operation in acl.operations:
        words += ["--operation", _OPERATIONS[operation]]
    if acl.pattern == "PREFIXED":
        words += ["--resource-pattern-type", "prefixed"]
    return f"kafka-acls.sh --bootstrap-server {BOOTSTRAP} {shlex.join([*words, _FLAGS[acl.resource], acl.name])}"


def strimzi_topics(specs: Sequence[TopicSettings]) -> str:
    """A KafkaTopic for each topic, as YAML documents."""
    return _documents(_strimzi_topic(spec) for spec in specs)


def _strimzi_topic(spec: TopicSettings) -> dict[str, Any]:
    name = _kubernetes_name(spec.name)
    body: dict[str, Any] = {"partitions": spec.partitions, "config": dict(sorted(spec.config.items()))}
    if spec.replication_factor > 0:
        body["replicas"] = spec.replication_factor
    if name != spec.name:
        body["topicName"] = spec.name
    return _resource("KafkaTopic", name, body)


def strimzi_users(app: str, acls: Sequence[Acl]) -> str:
    """A KafkaUser for each principal, as YAML documents; authentication is the user's own choice."""
    by_principal = groupby(sorted(acls, key=lambda acl: acl.principal), key=lambda acl: acl.principal)
    return _documents(_strimzi_user(app, list(group)) for _, group in by_principal)


def _strimzi_user(app: str, acls: Sequence[Acl]) -> dict[str, Any]:
    rules = [
        {
            "resource": {
                "type": _RESOURCES[acl.resource],
                "name": acl.name,
                "patternType": "prefix" if acl.pattern == "PREFIXED" else "literal",
            },
            "operations": [_OPERATIONS[operation] for operation in acl.operations],
        }
        for acl in acls
    ]
    return _resource(
        "KafkaUser", _kubernetes_name(_user(app, acls[0])), {"authorization": {"type": "simple", "acls": rules}}
    )


def _user(app: str, acl: Acl) -> str:
    return f"{app}-{acl.principal}"


def _resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "labels": {CLUSTER_LABEL: CLUSTER_NAME}}
    return {"apiVersion": STRIMZI_API, "kind": kind, "metadata": metadata, "spec": spec}


def _kubernetes_name(name: str) -> str:
    """A name that Kubernetes takes: lower case, letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.")


def _documents(resources: Iterable[dict[str, Any]]) -> str:
    return "---\n" + yaml.safe_dump_all(resources, sort_keys=False).rstrip("\n")
