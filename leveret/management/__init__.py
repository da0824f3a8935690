"""The HTTP port of a node: RabbitMQ's HTTP API, metrics, queues as data, and the web page.

`app` puts it together, `http` is the server, `api` the handlers, `page` the files of the web page.
"""
