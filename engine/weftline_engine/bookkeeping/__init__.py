"""What an engine knows about its ops, contexts and KV blocks: it decides, and computes nothing."""
