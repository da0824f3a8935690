"""Commands of leveretctl about users, permissions, policies, limits and definitions."""
