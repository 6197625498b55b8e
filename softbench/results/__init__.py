"""What is kept of a run: records, rows, CSV and JSON files."""
