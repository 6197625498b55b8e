"""Runs on several cards: a process for each card, whose records go into one store."""
