"""Softmax of attention scores with scale, mask and sink, and its gradient."""
