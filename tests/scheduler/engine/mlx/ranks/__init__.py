"""Engines of several ranks that run a model, on a ring of this machine's loopback."""
