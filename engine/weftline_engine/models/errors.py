"""The one error of the model store."""

from __future__ import annotations


class ModelUnavailable(Exception):
    """A model cannot be had; the message is one sentence for the user that says what to do."""
