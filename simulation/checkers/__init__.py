"""What must hold in every run: of messages, mirrors, metadata, streams, limits, pauses and the time of answers.

A checker sees what clients saw, what nodes agreed on, and what was done to them; it shares no code with the broker's
part that it checks. Imports `core`, `amqp` and `features`.
"""
