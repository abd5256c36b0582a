"""Tests of the pipeline from token ids to text."""
