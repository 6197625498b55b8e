"""Decides whether a backend became slower."""
