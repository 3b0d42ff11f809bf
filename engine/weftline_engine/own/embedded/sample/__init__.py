"""From logits to tokens: sampling, penalties and constraints."""

from __future__ import annotations
