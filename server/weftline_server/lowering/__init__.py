"""Turns submitted calls and steps into primitives that engines run, and engine results
into values.
"""
