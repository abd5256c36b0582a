"""The servers that Penstock is compared with: how to install them, and the request fields that they
honour."""
