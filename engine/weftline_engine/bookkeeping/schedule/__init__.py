"""The plan of a step: which sequences are in it, in which order, and how many tokens and blocks
each gets."""

from __future__ import annotations
