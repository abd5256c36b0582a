"""Penstock's HTTP API. It may import `scheduler`; never the reverse."""
