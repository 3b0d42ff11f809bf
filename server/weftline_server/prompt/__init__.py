"""Renders prompts, tokenises them, and reads and writes each model's tool-call format.

No module here imports Jinja or tokenizers before it renders or tokenises.
"""

from __future__ import annotations
