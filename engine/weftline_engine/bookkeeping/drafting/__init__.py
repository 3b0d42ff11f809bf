"""Drafts: guesses of the next tokens, which a step verifies together with the token that it would
compute without them."""

from __future__ import annotations

from weftline_engine.bookkeeping.drafting.drafting import Drafter, Drafting
from weftline_engine.bookkeeping.drafting.gate import MOST_DRAFTS, MOST_ROWS, StepCosts
from weftline_engine.bookkeeping.drafting.lookup import Lookup
from weftline_engine.bookkeeping.drafting.rates import Guess, GuessRates, GuessSource

__all__ = [
    "MOST_DRAFTS",
    "MOST_ROWS",
    "Drafter",
    "Drafting",
    "Guess",
    "GuessRates",
    "GuessSource",
    "Lookup",
    "StepCosts",
]
