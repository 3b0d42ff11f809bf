"""MCP servers as tools: each in a child process, which speaks MCP on one side and JSON frames here.

config  the settings of one server
host    the child process: it connects, and runs calls
listing the tools of a server, and their names here
stdio   the connection to a server that the host has started
"""

from __future__ import annotations
