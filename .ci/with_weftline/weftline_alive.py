"""A pytest plugin that keeps a ChatWeftline alive, so that its hook is on in every test."""

from __future__ import annotations

from langchain_weftline import ChatWeftline

MODEL = ChatWeftline()
