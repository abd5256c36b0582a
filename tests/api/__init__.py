"""Tests of the HTTP face."""
