"""Embedders: a vector of each prompt, and no token."""
