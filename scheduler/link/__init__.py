"""The link between the two processes: messages, framing, the channel, and the child process."""
