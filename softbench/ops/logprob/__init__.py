"""The log-probability of a target and the entropy of each row, with their gradient."""
