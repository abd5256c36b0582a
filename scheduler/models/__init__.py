"""The models that Penstock brings itself: the embedded one, and random ones for tests and figures."""
