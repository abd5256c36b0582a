"""Tests of the models that Penstock brings itself."""
