"""Contracts that a fake and the real part both pass; the test files beside each part run them."""
