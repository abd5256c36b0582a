"""Contracts that a fake and the real part pass alike; the test files beside each part run them."""
