"""The shell around the machines: listeners, timers, settings, the process of one node."""
