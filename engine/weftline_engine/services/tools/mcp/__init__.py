"""MCP servers as tools. Each has a child process here, which speaks MCP to it and frames to us.

config  the settings of one server
host    the child process: it connects, and runs calls
listing the tools of a server, and their names here
stdio   the connection to a server that the host has started
"""

from __future__ import annotations
