"""Log-softmax over the last axis: bytes, inputs, float64 reference, bounds and check cases."""
