"""Prompts, scoring, the walk over depths and the acceptance profile that comes out of them."""
