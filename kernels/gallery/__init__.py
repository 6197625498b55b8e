"""Softmax and its gradient as one would write them in each language of today, each in a file that needs no other.

Each file is a plugin with the functions `softmax(x)` and `softmax_backward(dy, y)` on (M, N) rows. softbench's own kernels are in the other
packages; these here are to be read, and `softbench gallery` shows what each line of code is worth.
"""
