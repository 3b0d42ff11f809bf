"""Transports: an engine in a child process, or on another machine over TCP.

`wire` encodes verbs and events as frames. `process` starts a child and `host` is the program of
that child. `tcp` lets engines on other machines join a server.
"""

from __future__ import annotations
