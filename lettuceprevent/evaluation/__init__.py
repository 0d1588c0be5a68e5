"""Measurement: checkers and metrics that share no code with what runs inside generation."""
