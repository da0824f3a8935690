"""Clients that do the steps of a plan over connections that may break at any time.

They report to the ledger (`checkers.ledger`) what they sent and received. Imports `core`, `amqp`, `features` and
`checkers`.
"""
