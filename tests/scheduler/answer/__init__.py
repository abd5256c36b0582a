"""Tests of the way from token ids to text."""
