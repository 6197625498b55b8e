"""Cross entropy of logits and a target in each row, with its gradient."""
