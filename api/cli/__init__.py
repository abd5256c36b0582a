"""What an operator types besides `serve`: each command in a file or a folder of its own."""
