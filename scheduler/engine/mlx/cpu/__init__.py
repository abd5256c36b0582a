"""Code that only a plain x86 CPU needs: Metal and CUDA use none of it."""
