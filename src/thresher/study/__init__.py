"""Many runs, executors for them, and sound statistics."""
