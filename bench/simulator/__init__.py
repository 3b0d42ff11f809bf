"""Runs the server's own scheduling on simulated engines, in simulated time."""
