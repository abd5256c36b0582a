"""The one folder that imports MLX."""
