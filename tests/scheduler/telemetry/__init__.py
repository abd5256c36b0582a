"""Tests of metrics and of the request log."""
