"""Engines without a model, for tests, examples and predictions.

null          echoes prompts, follows a script, or writes a fixed length
simulation    takes the steps of the embedded engine, and their time from a profile
virtual_time  an event loop whose clock jumps to the next timer
"""

from __future__ import annotations
