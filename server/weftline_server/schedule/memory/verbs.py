"""What memory tells engines about contexts: verbs as data, and the code that sends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weftline_engine.api import Hints, Retention
from weftline_server.schedule.engines.member import EngineState, Member


@dataclass(frozen=True, slots=True)
class AdviseContext:
    """Tell `engine` that `tokens` of `context` (None: all) will be read in `pause_s` seconds."""

    engine: str
    context: str
    pause_s: float
    tokens: int | None


@dataclass(frozen=True, slots=True)
class RetainContext:
    """Tell `engine` how to retain `context`."""

    engine: str
    context: str
    retention: Retention


@dataclass(frozen=True, slots=True)
class FreeContext:
    """Tell `engine` that `context` will not be read again."""

    engine: str
    context: str


Verb = AdviseContext | RetainContext | FreeContext


def perform(verbs: Iterable[Verb], members: Mapping[str, Member]) -> None:
    """Send each verb to its engine. An engine that is gone has lost its contexts and
    gets nothing.
    """
    for verb in verbs:
        member = members.get(verb.engine)
        if member is None or member.engine is None or member.state is EngineState.DOWN:
            continue
        match verb:
            case AdviseContext(_, context, pause_s, tokens):
                member.engine.update(context, Hints(expected_pause=pause_s, kept_tokens=tokens))
            case RetainContext(_, context, retention):
                member.engine.retain(context, retention)
            case FreeContext(_, context):
                member.engine.free(context)
