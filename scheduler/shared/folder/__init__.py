"""One reading of a model's folder."""
