"""The benches of the pool."""
