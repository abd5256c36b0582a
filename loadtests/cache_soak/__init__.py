"""A soak of the caches on a prompt's way: sessions come and go, and nothing may grow."""
