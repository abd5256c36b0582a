"""What the server and the engine both import."""
