"""From step outputs to one mailbox a request."""
