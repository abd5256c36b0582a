"""Tests of the chaos runs' own judgement."""
