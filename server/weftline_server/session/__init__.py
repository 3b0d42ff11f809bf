"""The pure state machine of one application run: events in, actions out."""
