"""Commands about users, vhosts, permissions, policies, parameters and definitions."""
