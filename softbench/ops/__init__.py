"""What is computed: a file for each operation, and what operations share."""
