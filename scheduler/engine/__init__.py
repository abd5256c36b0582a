"""The engine process: one thread owns MLX. Imports neither trio nor any server-side module."""
