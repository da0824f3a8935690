"""`leveretctl`: what operators of RabbitMQ do with rabbitmqctl."""
