"""Tools as an engine: each call runs in a process of its own, with limits.

limits   what a call may use
frames   JSON frames between the engine and a call's process
zygote   the process that has loaded the tools' modules, and forks one process for each call
sandbox  how bubblewrap isolates a call
inside   the process of a call in the sandbox
engine   ToolEngine: the verbs of an engine, on zygotes
"""

from __future__ import annotations
