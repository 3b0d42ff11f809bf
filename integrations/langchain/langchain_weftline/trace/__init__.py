"""Provenance: which template, values and earlier answers made each prompt of a run."""

from __future__ import annotations
