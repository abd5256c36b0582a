"""Tests of the models that Penstock ships or generates."""
