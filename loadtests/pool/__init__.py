"""Benches of the pool: what several engines behind one server give, and what they cost it."""
