"""The engines under supervision, and what each has in hand."""
