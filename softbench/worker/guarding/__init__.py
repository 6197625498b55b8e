"""Finds what a plugin did besides its work: replaced functions, work that is not finished, and changed settings of its caller."""
