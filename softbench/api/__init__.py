"""softbench from Python: what the commands `run`, `gate` and `check` do, with functions and results of Python."""
