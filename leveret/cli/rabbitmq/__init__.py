"""RabbitMQ's programs under their own names: `rabbitmq-server`, `rabbitmqctl`, `rabbitmq-plugins`, `rabbitmqadmin`.

`programs` runs the one that is named; `leveret names DIR` makes the files that call it. `server` has RabbitMQ's folders
and defaults, `admin` is a client of the HTTP API. The package may import `leveret.cli` and `leveret.cli.ctl`.
"""
