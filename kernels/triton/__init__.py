"""softbench's Triton softmax kernels. Nothing here imports the benchmarking side.

    softmax.py  ours: tiers by N, configurations by rule
    row.py      the way of Triton's fused-softmax tutorial: a row per program, a persistent grid
    tile.py     several rows per program, tensor descriptors where strides allow them, autotuned
    rows.py     shapes, strides and autograd, which all of them share

`from softbench.kernels.triton.softmax import softmax`. Under TRITON_INTERPRET=1 (set before triton is imported) they run on the CPU.
"""
