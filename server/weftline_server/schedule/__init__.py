"""Decides which primitive runs where and when, and what stays in the KV caches."""
