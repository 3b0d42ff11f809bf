"""What a running server shows to operators and users: metrics, logs and views of a session."""
