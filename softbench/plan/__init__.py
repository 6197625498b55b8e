"""From settings and a sweep to the cases of a run. Starts no process and writes no file."""
