"""What runs inside a worker process: building, checking and timing one backend."""
