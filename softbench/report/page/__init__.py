"""The page of results: one HTML file without network."""
