"""Metrics, the log set-up and the one canonical line a request."""
