"""The promises of the distributions: wide ranges, security floors, one version, no fixed index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from weftline_server.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECTS = (".", "integrations/langchain", "integrations/llamaindex")

# The lowest version of each package without a known vulnerability that affects us.
FLOORS = {
    "starlette": "1.3.1",
    "h11": "0.16",
    "jinja2": "3.1.6",
    "orjson": "3.11.5",
    "langchain-core": "1.3.3",
    "langchain": "1.3.9",
    "langchain-openai": "1.1.14",
    "llama-index-core": "0.13.0",
    "ray": "2.56",
    "vllm": "0.30",
}


@cache
def project(folder: str) -> dict[str, Any]:
    """The [project] table of `folder`."""
    table = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    return dict(table["project"])


def requirements(folder: str) -> list[Requirement]:
    """The requirements of `folder`, those of its extras included."""
    found = list(project(folder).get("dependencies", []))
    for extra in project(folder).get("optional-dependencies", {}).values():
        found += extra
    return [Requirement(text) for text in found]


def constraints() -> dict[str, Version]:
    """The versions in constraints.txt, by package name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name: Version(version) for name, version in pins}


@pytest.mark.parametrize("folder", PROJECTS)
def test_ranges_are_wide_and_start_at_the_security_floor(folder: str) -> None:
    """Every requirement has a lower bound, and none pins one version."""
    for requirement in requirements(folder):
        specifiers = {s.operator: s.version for s in requirement.specifier}
        assert not {"==", "===", "~="} & specifiers.keys(), requirement
        assert ">=" in specifiers, f"{requirement} has no lower bound"
        floor = FLOORS.get(canonicalize_name(requirement.name))
        if floor is not None:
            assert Version(specifiers[">="]) >= Version(floor), f"{requirement} allows < {floor}"


@pytest.mark.parametrize("folder", PROJECTS[:2])
def test_the_constraints_pin_what_we_ask_for(folder: str) -> None:
    """Each package that `make install` names has one exact version, inside its range."""
    pins = constraints()
    optional = project(folder).get("optional-dependencies", {})
    skipped = {
        Requirement(text).name
        for extra in ("gpu", "vllm", "ray")
        for text in optional.get(extra, [])
    }
    for requirement in requirements(folder):
        if requirement.name in skipped | {"weftline"}:
            continue
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} excludes {pin}"
    assert pins["torch"] == Version("2.13.0")


def locked(name: str) -> dict[str, tuple[Version, int]]:
    """The version of each package in deploy/locked, and how many hashes it has."""
    text = (ROOT / "deploy" / "locked" / f"{name}.txt").read_text()
    found = re.findall(r"^([a-z0-9-]+)==(\S+)(.*(?:\n    .*)*)", text, re.MULTILINE)
    return {name: (Version(pin), rest.count("--hash=sha256:")) for name, pin, rest in found}


def test_an_image_holds_nothing_without_a_hash() -> None:
    """The lists have all that a server asks for, at the versions that the tests run with."""
    pins, packages = constraints(), locked("server") | locked("torch") | locked("build")
    wanted = [Requirement(text) for text in project(".")["dependencies"]]
    for extra in ("server", "engine", "encryption", "otel", "gpu", "postgres"):
        wanted += [Requirement(text) for text in project(".")["optional-dependencies"][extra]]
    assert {canonicalize_name(one.name) for one in wanted} <= packages.keys()
    assert [name for name, (_, hashes) in packages.items() if not hashes] == []
    other = {n: pin for n, (pin, _) in packages.items() if pins.get(n, pin) != pin}
    assert other == {}
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    installs = re.findall(r"pip install --no-cache-dir (.*)", dockerfile)
    assert all(one.startswith(("--require-hashes", "--no-deps")) for one in installs), installs


def test_the_distributions_have_one_version() -> None:
    """The adapters require the weftline version that they were released with."""
    assert len({project(folder)["version"] for folder in PROJECTS}) == 1
    version = Version(project(".")["version"])
    for folder in PROJECTS[1:]:
        wanted = next(r for r in requirements(folder) if r.name == "weftline")
        assert wanted.specifier.contains(version)


def test_the_client_alone_is_small() -> None:
    """`pip install weftline` brings httpx2 and h11, and no framework."""
    names = {Requirement(text).name for text in project(".")["dependencies"]}
    assert names == {"httpx2", "h11"}


def test_no_index_is_baked_in() -> None:
    """None of our files names a package index, because that is the user's setting."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pattern = re.compile(r"--(?:extra-)?index-url|--find-links|https?://[^\s\"']*/simple\b")
    found = [
        name
        for name in listed.stdout.split("\0")
        if name and (ROOT / name).is_file() and Path(name).suffix in ("", ".txt", ".toml", ".md")
        if pattern.search((ROOT / name).read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_every_package_tells_type_checkers_that_it_has_types() -> None:
    """A part of the namespace llama_index is a package of its own, and needs a mark of its own."""
    parts = (ROOT / "integrations/llamaindex/llama_index").glob("*/weftline")
    named = ("client/weftline", "server/weftline_server", "engine/weftline_engine")
    named += ("kernels/weftline_kernels", "integrations/langchain/langchain_weftline")
    packages = [*(ROOT / one for one in named), *parts]
    assert len(packages) == 10
    assert [one for one in packages if not (one / "py.typed").is_file()] == []


def test_serving_imports_no_package_of_another_extra() -> None:
    """Beside server and engine every extra is refused, as where it is not installed."""
    ours = {name for extra in ("server", "engine") for name in EXTRAS[extra].values()}
    others = {name for packages in EXTRAS.values() for name in packages.values()} - ours
    refused = sorted({*others, "transformers", "safetensors"})
    program = f"import sys; sys.modules.update(dict.fromkeys({refused!r})); "
    program += "import weftline_server.commands.serve, weftline_engine.own.loading"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
