"""Tests of the link between the two processes."""
