"""AMQP 0-9-1 as RabbitMQ speaks it: bytes to methods and contents, and back. Pure: no clock, no socket."""
