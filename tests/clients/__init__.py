"""Programs of agents' clients, which have pins of their own: `make test-clients`."""
