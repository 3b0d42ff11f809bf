"""Scheduling: which primitive runs on which engine, and when."""
