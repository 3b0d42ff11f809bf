"""The engine contract (Parrot section 7): six verbs down, a stream of events up.

    submit(op)   feed(op, offset, part, last)   update(op, hints)   cancel(op)
    retain(context, keep|evictable|swap|drop)   free(context)

Parrot's Fill, Generate and FreeContext are submit of kind fill, submit of kind generate, and free.
A verb returns at once and raises nothing. Errors come back as events. Hints are advice: the engine
keeps its own queue, and never waits for the server inside a step. This package imports neither
torch nor the server, so every engine and both ends of every transport can share it.
"""

from __future__ import annotations

from weftline_engine.api.context_words import in_known_words, too_long
from weftline_engine.api.description import (
    LACKING,
    OTHER_WORDS,
    WORDS,
    Capability,
    Constraint,
    Description,
    KvCosts,
)
from weftline_engine.api.engine import (
    Engine,
    EngineDied,
    HasMetrics,
    IsShared,
)
from weftline_engine.api.engine_events import (
    COUNTS,
    Accepted,
    Availability,
    ContextMoved,
    Elsewhere,
    Event,
    Failed,
    Finished,
    FinishReason,
    Items,
    Occupied,
    Part,
    Paused,
    Residency,
    Usage,
)
from weftline_engine.api.ops import (
    GROUP_WEIGHT,
    ITL_S,
    MOST_REFERENCES,
    PATIENCE_S,
    PRIORITY_S,
    PROMPT_ITL_S,
    SLOWER,
    THOUGHTS,
    Chat,
    Claim,
    Fed,
    Footprint,
    Guesses,
    Hints,
    Kind,
    Op,
    Retention,
    Return,
    SamplingParams,
)

__all__ = [
    "COUNTS",
    "GROUP_WEIGHT",
    "ITL_S",
    "LACKING",
    "MOST_REFERENCES",
    "OTHER_WORDS",
    "PATIENCE_S",
    "PRIORITY_S",
    "PROMPT_ITL_S",
    "SLOWER",
    "THOUGHTS",
    "WORDS",
    "Accepted",
    "Availability",
    "Capability",
    "Chat",
    "Claim",
    "Constraint",
    "ContextMoved",
    "Description",
    "Elsewhere",
    "Engine",
    "EngineDied",
    "Event",
    "Failed",
    "Fed",
    "FinishReason",
    "Finished",
    "Footprint",
    "Guesses",
    "HasMetrics",
    "Hints",
    "IsShared",
    "Items",
    "Kind",
    "KvCosts",
    "Occupied",
    "Op",
    "Part",
    "Paused",
    "Residency",
    "Retention",
    "Return",
    "SamplingParams",
    "Usage",
    "in_known_words",
    "too_long",
]
