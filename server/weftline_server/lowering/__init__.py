"""Turns what a client submitted into what engines run, and engine results into values."""
