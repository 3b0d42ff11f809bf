"""The engines under supervision: their states, the ops they run, and the prefixes they hold."""
