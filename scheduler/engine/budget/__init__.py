"""The memory that the engine may use: what is read, what was learned, what bounds it, and what follows."""
