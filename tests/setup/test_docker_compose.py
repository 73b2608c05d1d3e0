"""docker-compose.yml describes what exists: its syntax, its references, its mounts, and the metrics that it draws."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DASHBOARD = json.loads((ROOT / "docker/grafana/dashboards/kawait.json").read_text())


def has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(
    not has_compose(), reason="the docker CLI has no compose here; the other tests read the file as YAML"
)
def test_docker_accepts_the_file() -> None:
    done = subprocess.run(
        ["docker", "compose", "--file", "docker-compose.yml", "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_set_is_complete() -> None:
    assert set(SERVICES) == {"broker", "topics", "worker-1", "worker-2", "provider", "prometheus", "grafana"}
    assert [name for name, service in SERVICES.items() if not {"image", "build"} & set(service)] == []


def test_every_dependency_is_a_service_and_its_condition_can_come_true() -> None:
    for name, service in SERVICES.items():
        wanted = service.get("depends_on", {})
        assert set(wanted) <= set(SERVICES), name
        for other, how in wanted.items() if isinstance(wanted, dict) else []:
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other], (
                f"{name} waits for {other}"
            )


def test_every_mount_is_a_declared_volume_or_a_file_of_this_checkout() -> None:
    sources = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    named = {source for source in sources if not source.startswith(".")}
    assert named == set(COMPOSE["volumes"])
    assert [source for source in sources - named if not (ROOT / source).exists()] == []


def test_workers_share_their_files_and_keep_their_state_apart() -> None:
    one, two = (set(SERVICES[name]["volumes"]) for name in ("worker-1", "worker-2"))
    assert {mount.split(":")[1] for mount in one & two} == {"/data/in", "/data/out"}
    assert {mount.split(":")[1] for mount in one ^ two} == {"/state"}


def test_published_ports_are_this_machines_only_and_differ() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def copied() -> list[str]:
    """What the image takes from the checkout."""
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
    return [word for line in lines for word in line.split()[:-1]]


def test_the_image_copies_what_exists() -> None:
    assert [name for name in copied() if not (ROOT / name).exists()] == []


def test_the_image_is_given_what_it_copies_and_what_the_build_reads() -> None:
    let_through = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert {name.split("/")[0] for name in copied()} == set(let_through)
    assert {"pyproject.toml", "hatch_build.py", "kawait.py", "README.md", "LICENSE"} <= set(copied())


def test_prometheus_asks_every_worker_on_its_admin_port() -> None:
    scrape = yaml.safe_load((ROOT / "docker/prometheus.yml").read_text())["scrape_configs"][0]
    asked = {target for config in scrape["static_configs"] for target in config["targets"]}
    assert asked == {f"{name}:9464" for name in SERVICES if name.startswith("worker")}
    assert all("--admin-port=9464" in SERVICES[target.split(":")[0]]["command"] for target in asked)


def test_prometheus_has_the_rules_that_it_names() -> None:
    named = yaml.safe_load((ROOT / "docker/prometheus.yml").read_text())["rule_files"]
    mounted = dict(volume.split(":")[1::-1] for volume in SERVICES["prometheus"]["volumes"] if volume.endswith(":ro"))
    page = (ROOT / "docs/metrics.md").read_text()
    for name in named:
        for group in yaml.safe_load((ROOT / mounted[name]).read_text())["groups"]:
            assert all(f"`{rule['expr']}`" in page for rule in group["rules"])


def test_the_dashboard_draws_metrics_that_the_worker_has() -> None:
    drawn = {
        name
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
        for name in re.findall(r"kawait_\w+", target["expr"])
    }
    source = "\n".join(path.read_text() for path in (ROOT / "streams").rglob("*.py"))
    # A histogram is declared once and exposed as _bucket, _sum and _count; the client adds a counter's _total.
    declared = set(re.findall(r'"(?:kawait_)?(\w+?)(?:_total)?"', source))
    known = {re.sub(r"_(bucket|sum|count|total)$", "", name.removeprefix("kawait_")) for name in drawn}
    assert sorted(known - declared) == []
