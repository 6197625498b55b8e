"""What is computed: one package for each operation."""
