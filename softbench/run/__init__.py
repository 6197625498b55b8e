"""What the parent process does: measure, check, inspect, look at the machine."""
