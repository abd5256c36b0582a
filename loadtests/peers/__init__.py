"""The servers that Penstock is compared with: how to install them, and what they honour."""
