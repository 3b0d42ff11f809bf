"""What is told of every call that has ended: metrics, logs."""

from __future__ import annotations

from typing import Protocol

from weftline_server.session.call import CallRun
from weftline_server.session.session import Session


class CallObserver(Protocol):
    """Reads a call that has ended, and changes nothing."""

    def call_ended(self, session: Session, run: CallRun) -> None: ...
