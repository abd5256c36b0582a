"""Penstock's specification, as tests."""
