"""Commands that nodes ask of each other for the HTTP API: rows of clients and nodes, and figures."""
