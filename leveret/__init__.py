"""A message broker that RabbitMQ's clients, tools and habits work with unchanged."""

__version__ = "0.1.0"
