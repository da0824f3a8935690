"""Results of a run: kept as JSON, shown as tables and plots, put into the documentation.

Imports what it shows: `single`, `clusters`, `mqtt`, `stomp`, and the names of workloads in `ruler`.
"""
