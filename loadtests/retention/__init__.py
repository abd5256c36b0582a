"""What rules of eviction cost: agents' traces replayed against the prefix cache, without a model."""
