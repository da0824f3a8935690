"""What must be true in every run: of messages, mirrors, metadata, streams, limits, pauses and the time of answers.

A checker sees what clients saw, what nodes agreed on, and which faults there were; it shares no code with the part of
the broker that it checks. Imports `core`, `amqp` and `features`.
"""
