"""The prefix cache's radix tree and eviction policy. No arrays."""
