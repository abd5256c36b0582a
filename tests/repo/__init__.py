"""Tests of the repository itself: layers, sizes, maps."""
