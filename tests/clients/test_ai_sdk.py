"""A program of Vercel's AI SDK, which Node runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.clients.conftest import ASK, NAME, Sent, packages_of_npm

PROGRAM = Path(__file__).with_name("ai_sdk.mjs")


def test_a_program(base_url: str, sent: Sent) -> None:
    """A tool is called, whole and streamed; an object is written; an unknown model is told of."""
    command = ["node", "--input-type=module", "-", base_url]
    folder, program = packages_of_npm("ai"), PROGRAM.read_text()
    done = subprocess.run(command, cwd=folder, input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "whole": "It is sunny in Rome.",
        "steps": ["tool-calls", "stop"],
        "streamed": "It is sunny in Rome.",
        "reason": "stop",
        "river": {"name": "Rhine", "km": 1230},
        "refused": [404, "no engine serves model 'nosuch': use one of null"],
    }
    asked = ["system: Be brief.", f"user: {ASK}"]
    seen = [*asked, "call: get_weather(city=Rome)", "tool: sunny in Rome"]
    assert sent.talks == [*[asked, seen] * 2, [f"user: {NAME}"], ["user: Hi"]]
    assert sent.bodies[4]["response_format"]["json_schema"]["schema"]["required"] == ["name", "km"]
