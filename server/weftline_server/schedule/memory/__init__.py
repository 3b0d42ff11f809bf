"""Memory: which applications may use the KV caches, and which contexts stay in them."""
