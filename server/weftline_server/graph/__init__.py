"""Primitives and the variables between them."""
