"""Chaos tests: kill engines at random moments under a real server, and compare every answer."""
