"""Tests of the chaos runs' own comparisons."""
