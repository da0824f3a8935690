"""Clients that do the steps of a plan over connections that may break at any time.

They tell the ledger (`checkers.ledger`) what they sent and what they got. Imports `core`, `amqp`,
`features` and `checkers`.
"""
