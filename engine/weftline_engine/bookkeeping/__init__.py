"""An engine's records of its ops, contexts and KV blocks, which decide what steps compute."""

from __future__ import annotations

from weftline_engine.bookkeeping.admission import EngineLimits, OpRefused
from weftline_engine.bookkeeping.book import Book
from weftline_engine.bookkeeping.ops import Backend, Live
from weftline_engine.bookkeeping.output import Detokenizer, Logprobs, Sampled, TokenStream
from weftline_engine.bookkeeping.schedule.scheduler import SchedulerConfig, StepPlan

__all__ = [
    "Backend",
    "Book",
    "Detokenizer",
    "EngineLimits",
    "Live",
    "Logprobs",
    "OpRefused",
    "Sampled",
    "SchedulerConfig",
    "StepPlan",
    "TokenStream",
]
