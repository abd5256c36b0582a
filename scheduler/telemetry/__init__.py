"""Metrics, logging, traces, and the record of each finished request."""
