"""What all commands of leveretctl share: options, connecting to a node, formatters, help, progress."""
