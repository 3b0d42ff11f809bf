"""Memory: which applications may use the KV caches, and which contexts stay in them."""

from __future__ import annotations

from weftline_server.schedule.memory.keeper import Memory, Outlook, Want
from weftline_server.schedule.memory.verbs import Advise, Free, Retain, Verb, perform

__all__ = ["Advise", "Free", "Memory", "Outlook", "Retain", "Verb", "Want", "perform"]
