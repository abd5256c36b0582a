"""A small ASGI 3 server on trio and h11, for streams that live for minutes. See README.md."""
