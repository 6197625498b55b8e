"""The built-in backends. Each is loaded through the entry-point group `softbench.backends`."""
