"""The evaluation for CI: one request, a line a case, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cookbook.langchain import evaluation
from tests.integrations.conftest import StartServer
from tests.integrations.recording import recorded

RULES = [
    ("Given answer: The heel", '{"reason": "a heel is no heddle", "same": false}'),
    ("Given answer", '{"reason": "equal", "same": true}'),
    ("What lifts", "The heel."),
    ("shuttle", "The weft."),
    ("", "The warp."),
]
LINES = [
    "right  Which yarn does a shuttle carry?  The weft.  (equal)",
    "right  Which yarn does a loom hold under tension?  The warp.  (equal)",
    "WRONG  What lifts yarns of the warp?  The heel.  (a heel is no heddle)",
]


def test_the_exit_code(
    start_script: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is 1 below the threshold, 0 from the threshold on, and 1 without cases."""
    cases = tmp_path / "cases.json"
    with recorded(start_script(RULES)) as proxy:
        monkeypatch.setenv("WEFTLINE_BASE_URL", proxy.url)

        def ran(*arguments: str) -> tuple[int, list[str]]:
            monkeypatch.setattr("sys.argv", ["evaluation", *arguments])
            return evaluation.main(), capsys.readouterr().out.splitlines()

        assert ran() == (1, [*LINES, "67% are right, and 80% have to be"])
        sent = len(proxy.bodies("/v1/submit")), len(proxy.bodies("/v1/chat/completions"))
        assert sent == (1, 0)
        cases.write_text(json.dumps(evaluation.CASES[:2]))
        assert ran(str(cases), "1") == (0, [*LINES[:2], "100% are right, and 100% have to be"])
        cases.write_text("[]")
        assert ran(str(cases))[0] == 1
