"""The two processes' link: messages, framing, the channel, the child process and its supervision."""
