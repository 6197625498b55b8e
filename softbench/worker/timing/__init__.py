"""Times the calls of a case: timers, rotating inputs, batches, the trace of the profiler, and telemetry."""
