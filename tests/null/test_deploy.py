"""The files in deploy/: their commands, probes and ports are those of this weftline."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from weftline_server.app import create_app
from weftline_server.commands import engine_spec, serve, settings
from weftline_server.config import ServerConfig
from weftline_server.http.state import state_of

DEPLOY = Path(__file__).parents[2] / "deploy"
PORT = ServerConfig().port


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all(text(name)))


def kubernetes(kind: str) -> Any:
    """The one object of this kind in both files."""
    both = (*documents("kubernetes.yaml"), *documents("kubernetes-one.yaml"))
    return next(one for one in both if one["kind"] == kind)


def pod(kind: str = "Deployment") -> Any:
    return kubernetes(kind)["spec"]["template"]["spec"]


def commands() -> dict[str, list[str]]:
    """What each file calls `weftline` with."""
    dockerfile = text("Dockerfile").replace("\\\n", " ")
    (image,) = re.findall(r"^CMD (\[.*\])$", dockerfile, re.M)
    (unit,) = re.findall(r"^ExecStart=\S+/weftline (.*)$", text("weftline.service"), re.M)
    (compose,) = documents("compose.yaml")
    (several,) = documents("compose-servers.yaml")
    (container,) = pod()["containers"]
    (single,) = pod("StatefulSet")["containers"]
    return {
        "Dockerfile": json.loads(image),
        "weftline.service": shlex.split(unit),
        "compose.yaml": compose["services"]["weftline"]["command"],
        "compose-servers.yaml": several["services"]["weftline-2"]["command"],
        "kubernetes.yaml": container["args"],
        "kubernetes-one.yaml": single["args"],
    }


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_arguments(parser)
    assert words[0] == "serve"
    return parser.parse_args(words[1:])


@pytest.mark.parametrize("name", commands())
def test_every_command_is_understood(name: str) -> None:
    """Each keeps its sessions and reads its key from a file. None has a key in it."""
    args = parsed(commands()[name])
    several = name in ("compose-servers.yaml", "kubernetes.yaml")
    assert ("postgresql://weftline@postgres/" if several else "sessions.db") in str(args.store)
    assert args.api_key_file is not None and not Path(args.api_key_file).suffix
    assert len(engine_spec.from_arguments(args)) == 1


@pytest.mark.parametrize("name", [one for one in commands() if one != "weftline.service"])
def test_a_container_listens_to_others(name: str) -> None:
    """Its loopback is its own, so its command names all addresses and keeps the usual port."""
    args = parsed(commands()[name])
    assert args.host == "0.0.0.0" and args.port is None


def test_compose_starts_vllm_as_the_docs_say() -> None:
    """vLLM orders by the plan and reports cached tokens. weftline connects to its port."""
    (compose,) = documents("compose.yaml")
    vllm = compose["services"]["vllm"]["command"]
    assert {"--scheduling-policy=priority", "--enable-prompt-tokens-details"} <= set(vllm)
    args = parsed(commands()["compose.yaml"])
    assert (args.engine, args.connect) == ("vllm", "http://vllm:8000")
    assert compose["services"]["weftline"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert "ports" not in compose["services"]["vllm"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose-servers.yaml"])
def test_compose_takes_the_files(name: str) -> None:
    """No field is unknown or of another type in compose's own schema, which a package brings."""
    schemas = files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text())
    (compose,) = documents(name)
    jsonschema.validate(compose, schema)
    compose["services"]["weftline-3"] = {"imagee": "weftline:cpu"}
    with pytest.raises(jsonschema.ValidationError, match="imagee"):
        jsonschema.validate(compose, schema)


@pytest.mark.parametrize("name", ["compose.yaml", "compose-servers.yaml"])
def test_what_compose_names_is_there(name: str) -> None:
    """Services, volumes, secrets, configs, build targets and ports that one place names, another
    has. An address in a command is that of a service, on the port that it listens on.
    """
    (compose,) = documents(name)
    services = compose["services"]
    mounts = [one.split(":") for each in services.values() for one in each.get("volumes", ())]
    named = {source for source, *_ in mounts if "/" not in source and "$" not in source}
    assert named == set(compose.get("volumes", {}))
    secrets = {one for each in services.values() for one in each.get("secrets", ())}
    assert secrets == set(compose.get("secrets", {}))
    configs = {one["source"] for each in services.values() for one in each.get("configs", ())}
    assert configs == set(compose.get("configs", {}))
    for each in services.values():
        for other, wants in each.get("depends_on", {}).items():
            assert wants == {"condition": "service_healthy"} and "healthcheck" in services[other]
        if "build" in each:
            where = DEPLOY / each["build"]["context"]
            dockerfile = (where / each["build"]["dockerfile"]).read_text()
            assert re.search(rf"^FROM .* AS {each['build']['target']}$", dockerfile, re.M)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_the_probes_are_routes(kind: str) -> None:
    """The container's port is the one that weftline takes, and each probe asks a route there."""
    routes = set(create_app(ServerConfig(), {}).openapi()["paths"])
    (container,) = pod(kind)["containers"]
    assert [one["containerPort"] for one in container["ports"]] == [PORT]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness")}
    probes["liveness"] = container["livenessProbe"]["httpGet"]
    assert {one["port"] for one in probes.values()} == {"http"}
    assert {name: one["path"] for name, one in probes.items()} == {
        "startup": "/health/ready",
        "readiness": "/health/ready",
        "liveness": "/health/live",
    }
    asked = set(re.findall(rf"127\.0\.0\.1:{PORT}(/[a-z/]+)", text("Dockerfile")))
    assert asked == {"/health/live"}
    assert {one["path"] for one in probes.values()} | asked | {"/metrics"} <= routes


def test_the_orchestrators_wait_for_the_drain() -> None:
    """Each waits longer for the end than running calls get to finish."""
    drain_s = settings.load(DEPLOY / "weftline.toml", {}).process.drain_s
    (compose,) = documents("compose.yaml")
    grace = compose["services"]["weftline"]["stop_grace_period"]
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text("weftline.service"), re.M)
    (several,) = documents("compose-servers.yaml")
    graces = (grace, several["services"]["weftline-1"]["stop_grace_period"])
    pods = [pod(kind)["terminationGracePeriodSeconds"] for kind in ("Deployment", "StatefulSet")]
    for waits in (int(stop), *(int(one.removesuffix("s")) for one in graces), *pods):
        assert waits >= 2 * drain_s
    (container,) = pod()["containers"]
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause + 2 * drain_s <= pods[0]


def test_servers_of_one_store_have_addresses_of_their_own() -> None:
    """A pod by its IP, a container by its host name. Each name is another, and both are known to
    the balancer, which asks the route of a server that drains.
    """
    (container,) = pod()["containers"]
    args = parsed(container["args"])
    assert args.address == f"http://$(POD_IP):{PORT}"
    fields = {one["name"]: one["valueFrom"] for one in container["env"]}
    assert fields["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert fields["PGPASSWORD"]["secretKeyRef"]["name"] == "weftline"
    (several,) = documents("compose-servers.yaml")
    hosts = {n: one["hostname"] for n, one in several["services"].items() if "hostname" in one}
    assert hosts == {"weftline-1": "weftline-1", "weftline-2": "weftline-2"}
    balancer = several["configs"]["balancer"]["content"]
    assert all(f"{host}:{PORT}" in balancer for host in hosts)
    assert "health_uri /health/ready" in balancer and "flush_interval -1" in balancer


def test_the_ports_of_compose_servers_agree() -> None:
    """The balancer publishes what it listens on, and its upstreams are all servers. The store is
    the service of PostgreSQL, with its user; nothing else is published.
    """
    (several,) = documents("compose-servers.yaml")
    services = several["services"]
    published = {n: one["ports"] for n, one in services.items() if "ports" in one}
    balancer = several["configs"]["balancer"]["content"]
    (listens,) = re.findall(r"^:(\d+) \{", balancer)
    assert published == {"balancer": [f"127.0.0.1:{listens}:{listens}"]}
    (upstreams,) = re.findall(r"reverse_proxy (.*) \{", balancer)
    servers = [name for name in services if name.startswith("weftline-")]
    assert upstreams.split() == [f"{name}:{PORT}" for name in servers]
    database = services["postgres"]["environment"]
    for name in servers:
        store = f"postgresql://{database['POSTGRES_USER']}@postgres/weftline"
        assert parsed(services[name]["command"]).store == [store]
    assert "POSTGRES_DB" not in database  # the image makes one that is called as the user
    passwords = {services[name]["environment"]["PGPASSWORD"] for name in servers}
    assert passwords == {"${PGPASSWORD:?a password for PostgreSQL}"}
    assert database["POSTGRES_PASSWORD"] == "${PGPASSWORD}"


def test_an_upgrade_has_as_many_servers_as_before() -> None:
    """A new pod is ready before an old one ends. Of two or more, one is taken away at a time."""
    spec = kubernetes("Deployment")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    budget, scaler = kubernetes("PodDisruptionBudget"), kubernetes("HorizontalPodAutoscaler")
    assert budget["spec"]["maxUnavailable"] == 1 and spec["replicas"] >= 2
    assert budget["spec"]["selector"] == spec["selector"]
    assert scaler["spec"]["minReplicas"] == spec["replicas"]
    target = scaler["spec"]["scaleTargetRef"]
    assert target["name"] == kubernetes("Deployment")["metadata"]["name"]


async def test_the_autoscaler_reads_a_metric_of_ours() -> None:
    """The server has a gauge of this name."""
    (metric,) = kubernetes("HorizontalPodAutoscaler")["spec"]["metrics"]
    metrics = state_of(create_app(ServerConfig(), {})).metrics
    name = metric["pods"]["metric"]["name"].encode()
    assert b"# TYPE " + name + b" gauge" in metrics.render()


def test_the_services_settings_are_read() -> None:
    """The unit's file is valid, and listens on loopback only: the proxy is in front."""
    found = settings.load(DEPLOY / "weftline.toml", {})
    (spec,) = engine_spec.from_tables(found.engines)
    assert (found.server.host, found.server.port, spec.engine) == ("127.0.0.1", PORT, "torch")


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
def test_the_proxies_pass_streams_on(name: str) -> None:
    """Nothing is buffered, and a silent stream lives for an hour."""
    said = text(name)
    assert f"127.0.0.1:{PORT}" in said and "1h" in said
    assert ("proxy_buffering off;" in said) or ("flush_interval -1" in said)


def checked(*command: str | Path) -> tuple[int, str]:
    """The exit status of a checker and what it says. Skipped where it is not installed."""
    beside = Path(sys.executable).parent  # what pip installed need not be in PATH
    found = shutil.which(str(command[0]), path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run([found, *command[1:]], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Every setting is known. The binary, which is not here, is this Python instead."""
    unit = text("weftline.service").replace("/opt/weftline/bin/weftline", sys.executable)
    (tmp_path / "weftline.service").write_text(unit)
    status, said = checked("systemd-analyze", "verify", "--man=no", tmp_path / "weftline.service")
    about = [line for line in said.splitlines() if "weftline.service" in line]
    assert (status, about) == (0, [])


def test_hadolint_finds_nothing() -> None:
    """The linter of Dockerfiles has no complaint."""
    assert checked("hadolint", DEPLOY / "Dockerfile") == (0, "")


@pytest.mark.parametrize(
    "kind",
    ["Service", "StatefulSet", "Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler"],
)
def test_kubernetes_takes_the_manifests(kind: str) -> None:
    """No field is unknown or of another type in the newest schema that the checker knows."""
    found = kubernetes(kind)
    newest = kubernetes_validate.latest_version()
    assert newest.startswith(kubernetes_validate.validate(found, newest, strict=True))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found | {"specs": {}}, newest, strict=True)
