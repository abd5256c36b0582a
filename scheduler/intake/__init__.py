"""Before a request reaches the engine: admission, the queue, deadlines, the dispatcher."""
