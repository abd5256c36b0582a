"""An engine for a server on another machine: it finds the server, the device and the model."""
