"""The stages before the engine: admission, the queue, deadlines."""
