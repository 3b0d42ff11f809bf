"""Stands in the way of torch while tests/null runs: those tests must need none."""

from __future__ import annotations

raise ModuleNotFoundError("tests/null must not import torch", name="torch")
