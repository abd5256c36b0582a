"""What exists only because a plain x86 CPU needs it: on Metal and CUDA nothing here is used."""
