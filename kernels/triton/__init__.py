"""softbench's Triton softmax kernels. Nothing here imports the benchmarking side."""
