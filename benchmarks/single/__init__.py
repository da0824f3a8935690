"""What one node is measured by, beside the workloads. Imports `ruler`."""
