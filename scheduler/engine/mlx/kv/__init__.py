"""Keys, values and states of the running rows, and what is kept of them."""
