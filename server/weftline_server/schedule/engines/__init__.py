"""The engines under supervision: their states, the ops they run, and the prefixes they hold."""

from __future__ import annotations

from weftline_server.schedule.engines.fleet import Fleet, Watcher
from weftline_server.schedule.engines.member import EngineState, Member, Work

__all__ = ["EngineState", "Fleet", "Member", "Watcher", "Work"]
