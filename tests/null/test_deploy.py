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
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from weftline_server.app import create_app
from weftline_server.commands import engine_spec, serve, settings
from weftline_server.config import ServerConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
PORT = ServerConfig().port


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all(text(name)))


def pod() -> Any:
    (found,) = [one for one in documents("kubernetes.yaml") if one["kind"] == "StatefulSet"]
    return found["spec"]["template"]["spec"]


def commands() -> dict[str, list[str]]:
    """What each file calls `weftline` with."""
    dockerfile = text("Dockerfile").replace("\\\n", " ")
    (image,) = re.findall(r"^CMD (\[.*\])$", dockerfile, re.M)
    (unit,) = re.findall(r"^ExecStart=\S+/weftline (.*)$", text("weftline.service"), re.M)
    (compose,) = documents("compose.yaml")
    (container,) = pod()["containers"]
    return {
        "Dockerfile": json.loads(image),
        "weftline.service": shlex.split(unit),
        "compose.yaml": compose["services"]["weftline"]["command"],
        "kubernetes.yaml": container["args"],
    }


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    serve.add_arguments(parser)
    assert words[0] == "serve"
    return parser.parse_args(words[1:])


@pytest.mark.parametrize("name", commands())
def test_every_command_is_understood(name: str) -> None:
    """Each keeps sessions on disk and reads its key from a file. None has a key in it."""
    args = parsed(commands()[name])
    assert "sessions.db" in str(args.store)
    assert args.api_key_file is not None and not Path(args.api_key_file).suffix
    assert len(engine_spec.from_arguments(args)) == 1


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "kubernetes.yaml"])
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


def test_the_probes_are_routes() -> None:
    """The container's port is the one that weftline takes, and each probe asks a route there."""
    routes = set(create_app(ServerConfig(), {}).openapi()["paths"])
    (container,) = pod()["containers"]
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
    for waits in (int(stop), int(grace.removesuffix("s")), pod()["terminationGracePeriodSeconds"]):
        assert waits >= 2 * drain_s


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


@pytest.mark.parametrize("kind", ["Service", "StatefulSet"])
def test_kubernetes_takes_the_manifests(kind: str) -> None:
    """No field is unknown or of another type in the newest schema that the checker knows."""
    (found,) = [one for one in documents("kubernetes.yaml") if one["kind"] == kind]
    newest = kubernetes_validate.latest_version()
    assert newest.startswith(kubernetes_validate.validate(found, newest, strict=True))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found | {"specs": {}}, newest, strict=True)
