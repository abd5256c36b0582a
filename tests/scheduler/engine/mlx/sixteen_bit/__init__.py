"""The engine in bfloat16 and float16, with the branches that Metal and CUDA take, on a CPU.

Most users' weights are 16-bit on a GPU; most tests compute in float32 on the host. Each check here says
whether it is an equality or has a tolerance, and why.
"""
