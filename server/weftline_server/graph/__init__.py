"""The graph of one session: which call produces a variable, and which calls wait for it."""
