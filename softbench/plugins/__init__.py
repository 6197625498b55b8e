"""Where backends come from, and what is known about each."""
