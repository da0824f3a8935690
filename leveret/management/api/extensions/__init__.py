"""Handlers that RabbitMQ does not have: mirrors of a queue, previews for the page, jobs, spools."""
