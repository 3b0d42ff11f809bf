"""Runs of plans: what was sent ahead, and how the requests of an application find it."""
