"""Measurements of STOMP: Leveret beside RabbitMQ with its plugin. Imports `ruler`."""
