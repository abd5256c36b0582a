"""`penstock chat`: a conversation in the terminal, or one answer through a pipe."""
