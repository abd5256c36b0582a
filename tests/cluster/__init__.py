"""Engines that a real Ray places. `make cluster` runs them."""
