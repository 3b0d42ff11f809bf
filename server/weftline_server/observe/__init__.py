"""What operators and users read of a running server: metrics, logs, the view of a session."""
