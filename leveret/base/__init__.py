"""Small things that any package may import: constants, and helpers without I/O. It imports nothing of ours."""
