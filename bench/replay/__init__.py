"""Replays recorded agent sessions: their lengths and times, with words of our own."""
