"""The papers' workloads and some newer ones, written as a user's LangChain or LlamaIndex
program."""

from __future__ import annotations
