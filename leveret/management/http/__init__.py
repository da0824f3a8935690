"""The HTTP server on h11: requests and responses, routes, authentication, CORS, JSON in pieces."""
