"""Whether probes find what they are for: planted faults, and runs on GPUs."""
