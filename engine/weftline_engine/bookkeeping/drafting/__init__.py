"""Drafts: guesses of the next tokens, which a step verifies together with the token that it would
compute without them."""

from __future__ import annotations
