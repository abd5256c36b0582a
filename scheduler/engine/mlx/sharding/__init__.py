"""One model over several `mx.distributed` ranks."""
