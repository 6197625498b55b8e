"""Measures the false alarms and the power of the gate."""
