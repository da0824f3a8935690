"""The HTTP port of a node: RabbitMQ's HTTP API, metrics, queues as data, and the web page.

`app` puts it together, `http` is the server, `api` the handlers, `page` the files of the web page. The server of a
node imports `app` when it opens that port. It imports the node.
"""
