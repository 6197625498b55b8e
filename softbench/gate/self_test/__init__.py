"""The gate's own false alarms and power, measured."""
