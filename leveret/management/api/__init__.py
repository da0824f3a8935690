"""RabbitMQ's HTTP API, a module for each kind of thing."""
