"""Memory's wishes about contexts, as data, and the code that sends them to the engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weftline_engine.api import Hints, Retention
from weftline_server.schedule.engines.slot import EngineState, Slot


@dataclass(frozen=True, slots=True)
class Advise:
    """Tell `engine` that `tokens` of `context` (None: all) will be read in `pause_s` seconds."""

    engine: str
    context: str
    pause_s: float
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Retain:
    """Tell `engine` how to retain `context`."""

    engine: str
    context: str
    retention: Retention


@dataclass(frozen=True, slots=True)
class Free:
    """Tell `engine` that `context` will not be read again."""

    engine: str
    context: str


Verb = Advise | Retain | Free


def perform(verbs: Iterable[Verb], slots: Mapping[str, Slot]) -> None:
    """Send each verb to its engine. An engine that is gone has lost its contexts and
    gets nothing.
    """
    for verb in verbs:
        slot = slots.get(verb.engine)
        if slot is None or slot.engine is None or slot.state is EngineState.DOWN:
            continue
        match verb:
            case Advise(_, context, pause_s, tokens):
                slot.engine.update(context, Hints(expected_pause=pause_s, kept_tokens=tokens))
            case Retain(_, context, retention):
                slot.engine.retain(context, retention)
            case Free(_, context):
                slot.engine.free(context)
