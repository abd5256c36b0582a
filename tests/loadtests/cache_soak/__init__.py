"""Tests of the soak of the caches."""
