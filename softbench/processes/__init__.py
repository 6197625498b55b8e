"""The parent's side of worker processes."""
