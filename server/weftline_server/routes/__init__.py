"""The HTTP routes: one resource a file, no decisions."""
