"""The plan of a step: which sequences it serves, in which order, and with how many tokens and
blocks."""

from __future__ import annotations
