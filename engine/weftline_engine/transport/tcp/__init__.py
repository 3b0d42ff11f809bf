"""Engines on other hosts: they join a server over TCP, with a key that both know."""
