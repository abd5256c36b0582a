"""What happens to requests when the engine fails them."""
