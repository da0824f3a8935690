"""One mirrored queue alone: `python -m simulation.ring`. Imports `core`."""
