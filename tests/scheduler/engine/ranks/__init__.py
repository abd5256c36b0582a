"""Tests of engines of several ranks, with the scripted back end."""
