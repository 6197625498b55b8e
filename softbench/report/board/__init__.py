"""The board: a static site of many runs."""
