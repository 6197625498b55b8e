"""Problems: what others call a kernel to write, as an operation without rows (docs/problems.md)."""
