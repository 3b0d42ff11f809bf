"""What operators and users read of a running server: metrics, logs and views of a session."""
