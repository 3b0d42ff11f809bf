"""The SDK: the clients and their sessions, variables, functions, agents and tools."""
