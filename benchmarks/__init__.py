"""Measures Leveret, beside RabbitMQ where that is installed: `python -m benchmarks`. See docs/benchmarks.md."""
