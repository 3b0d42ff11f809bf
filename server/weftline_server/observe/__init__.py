"""What operators and users can read of a running server: metrics, logs and views of a session."""
