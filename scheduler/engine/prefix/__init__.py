"""What is kept of prompts and answers: the tree, and what of it goes first. No arrays."""
