"""The judge's process: it owns inputs, outputs, reference and clock, and a plugin's process cannot reach it."""
