"""Where one decode step goes: in the engine, in the server, and in a bare BatchGenerator."""
