"""The HTTP server on h11: requests and responses, routes, authentication, CORS, JSON in pieces.

Handlers import `http_messages` and `auth`; `management.app` puts the rest together. It imports `node.sockets`,
`node.system` and packages below the node.
"""
