"""Which sequences a step serves, and with how many tokens."""
