"""Settings of a node: their names and types, and how they are read from files, environment and command line."""
