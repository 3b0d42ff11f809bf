"""KV blocks: which are free, which hold which tokens, and which go first."""
