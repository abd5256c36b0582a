"""The models that Penstock brings itself: the embedded one and the bench model, with random weights."""
