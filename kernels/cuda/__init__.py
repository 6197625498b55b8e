"""softbench's CUDA C++ softmax kernels. Nothing here imports the benchmarking side."""
