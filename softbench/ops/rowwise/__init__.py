"""What operations over rows share: passes, inputs, structured rows, comparison and check cases. It is no operation."""
