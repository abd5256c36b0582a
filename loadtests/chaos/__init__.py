"""Engines are killed at random moments under a real server, and every answer is compared."""
