"""Grammars of answers: compiled on a thread, and followed by each row."""
