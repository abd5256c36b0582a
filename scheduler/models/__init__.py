"""The models that Penstock ships or generates: the embedded one, and random ones for tests and benchmarks."""
