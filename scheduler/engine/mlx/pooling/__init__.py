"""Embedders and rerankers: a vector of each prompt, and no token."""
