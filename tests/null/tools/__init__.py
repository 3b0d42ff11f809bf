"""Tools as an engine: their calls, their limits and their faults."""
