"""What happens to a request before the engine sees it: admission, the queue, the dispatcher."""
