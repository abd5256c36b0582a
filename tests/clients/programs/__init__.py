"""Programs of the clients' own environment. Each prints what its framework made of the server's answers."""
