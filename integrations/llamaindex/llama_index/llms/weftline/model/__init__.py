"""The parts of a Weftline: its requests and their JSON, and its objects and tools."""
