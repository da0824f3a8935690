"""Handlers that change something: declarations, messages, users, vhosts, policies, definitions."""
