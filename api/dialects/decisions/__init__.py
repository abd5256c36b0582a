"""Decisions: typed questions about one state, answered by the probabilities of the answer's first token."""
