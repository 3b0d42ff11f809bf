"""Which applications may use the KV caches, and which contexts stay there."""
