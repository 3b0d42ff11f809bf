"""The CPU path: the C decoder, its variants for instruction sets, and how one is found."""

from __future__ import annotations
