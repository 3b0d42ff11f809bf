"""From logits to tokens: sampling, penalties and constraints."""
