"""Training: examples, labels on a host's tokens, corruption and splits."""
