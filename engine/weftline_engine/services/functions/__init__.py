"""An operator's Python functions as engines: each in worker processes, JSON both ways.

config   the settings of one function
engine   the verbs of an engine, on worker processes
worker   the process that has imported the function
"""

from __future__ import annotations
