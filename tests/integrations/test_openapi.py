"""Schemathesis against our OpenAPI: no request gets a 5xx response but the known 503."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from requests import Session

from tests.integrations.conftest import served
from weftline_server.app import create_app
from weftline_server.config import ServerConfig

# Limits that random requests can reach, so that their errors are tested too.
CONFIG = """
max_body = 65536
[registry]
max_sessions = 50
[registry.budget]
calls = 500
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file: Path = tmp_path_factory.mktemp("openapi") / "weftline.toml"
    file.write_text(CONFIG)
    with served("--config", str(file)) as url:
        yield url


@pytest.fixture(scope="module")
def session(url: str) -> str:
    """A session that exists."""
    return str(httpx2.post(f"{url}/v1/session").json()["session_id"])


schema = schemathesis.openapi.from_dict(create_app(ServerConfig(), {}).openapi())
# The boundaries of all fields, and all examples, are 14,000 requests. Each worker makes them when
# it collects the suite, and they are 60 % of the collection. `make test-long` sends them.
PHASES = tuple(Phase) if os.environ.get("OPENAPI_CASES") == "all" else (Phase.generate,)
NEEDED = {"messages", "prompt", "calls", "session_id", "semantic_var_id", "value"}


def aimed(case: Any, session: str) -> None:
    """Point every second request at an existing session with few fields, because hardly one would
    be accepted otherwise. No request waits for ever.
    """
    # The events of an open session have no end.
    known = len(repr(case.body)) % 2 and not case.path.endswith("/follow")
    if known and "session_id" in (case.path_parameters or {}) and case.method != "DELETE":
        case.path_parameters["session_id"] = session
    if isinstance(case.body, dict):
        if known:
            extra = [name for name in case.body if name not in NEEDED]
            for name in extra[1:]:
                del case.body[name]
            if "session_id" in case.body:
                case.body["session_id"] = session
        if case.body.get("wait") is True:
            case.body["wait"] = False


# A route without parameters gets its one request a dozen times, and a stream of events takes 19 s.
PASSED: set[str] = set()


def _parts(case: Any) -> str:
    """What tells a request from others."""
    return repr((case.method, case.path, case.path_parameters, case.query, case.body))


@pytest.fixture(scope="module")
def http() -> Iterator[Session]:
    """The connections of all requests."""
    with Session() as http:
        yield http


@schema.parametrize()
@hypothesis.settings(
    phases=PHASES,
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_route_breaks(case: Any, url: str, session: str, http: Session) -> None:
    """Typed refusals are correct: a 4xx has the form of our errors."""
    aimed(case, session)
    if (sent := _parts(case)) in PASSED:
        return
    answer = case.call(base_url=url, session=http, timeout=30)
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    if answer.status_code >= 400 and case.method != "HEAD":
        error = answer.json()["error"]
        assert error.keys() >= {"message", "type", "code", "param", "call"}
    PASSED.add(sent)
