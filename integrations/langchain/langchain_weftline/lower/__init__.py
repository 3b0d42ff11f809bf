"""Lowering: a LangChain chain as calls of the server, over values that are not there yet."""

from __future__ import annotations
