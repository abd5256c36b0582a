"""Keys, values and states of the running rows and of the prefix cache."""
