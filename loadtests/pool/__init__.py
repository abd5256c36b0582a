"""Benches of the pool: what several engines behind one front give, and what they cost it."""
