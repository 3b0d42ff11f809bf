"""Models: their configuration and weights, and the decoders that run them."""

from __future__ import annotations
