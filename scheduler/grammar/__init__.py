"""What answers are held to: from a client's words to a grammar of the whole answer."""
