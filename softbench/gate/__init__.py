"""Whether something became slower."""
