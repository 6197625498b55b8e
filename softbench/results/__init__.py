"""The files of a run: records, rows, CSV and JSON."""
