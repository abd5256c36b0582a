"""Programs of the clients' own environment. Each prints its framework's view of the server's answers."""
