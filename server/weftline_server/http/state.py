"""What the application holds for its routes, with types."""

from __future__ import annotations

from typing import Protocol

from starlette.applications import Starlette
from starlette.datastructures import State

from weftline_server.config import ServerConfig
from weftline_server.http.provenance import Runs
from weftline_server.runtime.driver import Driver


class Rendered(Protocol):
    """What Prometheus reads."""

    def render(self) -> bytes: ...


class ServerState(State):
    """Starlette's state, of which each name and type is declared here."""

    config: ServerConfig
    driver: Driver
    metrics: Rendered
    runs: Runs
    draining: bool
    start_error: Exception | None

    def __init__(self, config: ServerConfig, driver: Driver, metrics: Rendered) -> None:
        super().__init__()
        self.config = config
        self.driver = driver
        self.metrics = metrics
        self.runs = Runs()
        self.draining = False
        self.start_error = None


def state_of(app: Starlette) -> ServerState:
    """The state of an app that `create_app` made."""
    state = app.state
    assert isinstance(state, ServerState)
    return state
