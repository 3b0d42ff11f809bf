"""Constraints on outputs, read by llguidance: schemas, patterns, grammars and tags."""
