"""Sessions: one application run each, its variables and calls, as a synchronous state machine."""
